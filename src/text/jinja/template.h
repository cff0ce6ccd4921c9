// The template language of chat templates: jinja2 3.1 as transformers sets it up (immutable sandbox, trim_blocks,
// lstrip_blocks, break and continue, {% generation %}, tojson without HTML escapes, raise_exception, strftime_now).
//
//   memory      a Template is immutable after parse and may be rendered by many threads at once
//   fidelity    texts equal jinja2's byte for byte; what jinja2 has and this has not is a FormatError that names it
//   not here    block, extends, include, import, autoescape; the filters pprint, random, striptags, urlize, wordwrap,
//               xmlattr, filesizeformat; methods of markupsafe.Markup; integers beyond 2^125
//   limits      text/render_limits.h; the text of a template itself is at most 1 MiB
#pragma once

#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"
#include "text/span.h"

namespace lockstep::text::jinja {

struct Rendering {
  std::string text;
  std::vector<Span> generation_spans;  // bytes of `text`, in the order in which the blocks ended
};

struct RenderOptions {
  RenderLimits limits;
  std::optional<std::tm> now;  // for strftime_now; default: the clock, local time
};

class Template {
 public:
  // FormatError with the line. `where` names the template in errors.
  static Template parse(std::string_view source, const std::string& where);

  // `variables`: an object; its values become Python's dicts, lists, strings and numbers.
  // DataError: raise_exception, and whatever Python would raise. FormatError: not supported, or beyond a limit.
  Rendering render(const OrderedJson& variables, const RenderOptions& options = {}) const;

 private:
  Tree tree_;
  std::string where_;
};

}  // namespace lockstep::text::jinja
