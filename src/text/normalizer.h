// Changes text before it is cut: the `normalizer` of a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/aligned_text.h"
#include "text/normal_form.h"
#include "text/text_pattern.h"

namespace lockstep::text {

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase and sequences of these. Immutable.
class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // FormatError naming the component for any other kind; `where` names the file.
  Normalizer(const Json& json, const std::string& where);

  // False only when apply() would leave every such text as it is; cheap.
  bool may_change(std::string_view text) const;
  // `from` changed, into `to`, which must not be what `from` refers to.
  void apply(const TextView& from, AlignedText& to) const;
  std::string apply(std::string_view text) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    TextPattern pattern;
    std::string text;
  };
  struct Strip {
    bool left, right;
  };
  struct Lowercase {};
  using Step = std::variant<NormalForm, Prepend, Replace, Strip, Lowercase>;
  static Step read_step(const Json& json, const std::string& where);
  static void apply_step(const Step& step, const TextView& from, AlignedText& to);

  std::vector<Step> steps_;
};

// `from` with `matches` replaced by `text`. As in the library, the new bytes come from where the last character of the
// match came from.
void replace_matches(const TextView& from, std::span<const Span> matches, std::string_view text, AlignedText& to);

}  // namespace lockstep::text
