// What is done to the tokens of a text: the `post_processor` of a tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/span.h"

namespace lockstep::text {

// ByteLevel, TemplateProcessing (of a single text) and sequences of these. Immutable.
class PostProcessor {
 public:
  PostProcessor() = default;  // does nothing
  // FormatError naming the component for any other kind; `where` names the file.
  PostProcessor(const Json& json, const std::string& where);

  // The tokens that belong around a text's; without spans.
  void add_special(std::vector<int32_t>& ids) const;
  // The same with spans: ByteLevel takes the white space at the ends of a token out of its span when its trim_offsets
  // says so, with or without `add_special`. Tokens that are added have the span {0, 0}. spelling(i): of the i-th token
  // of the text; of an added token the text that was found, with the white space it took.
  void process(std::string_view text, const std::function<std::string_view(size_t)>& spelling, bool add_special,
               std::vector<int32_t>& ids, std::vector<Span>& spans) const;

 private:
  struct Trim {
    bool prefix_space;
  };
  struct Template {
    std::vector<std::vector<int32_t>> parts;  // ids; empty: the text
  };
  using Step = std::variant<Trim, Template>;
  static Template read_template(const Json& json, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace lockstep::text
