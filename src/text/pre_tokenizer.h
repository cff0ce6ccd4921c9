// Cuts text into the pieces that byte-pair encoding works on alone.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/split_regex.h"

namespace lockstep::text {

// The `pre_tokenizer` of a tokenizer.json: ByteLevel, Digits before it, and sequences of these. Immutable.
class PreTokenizer {
 public:
  // FormatError naming the component for any other kind; `where` names the file.
  PreTokenizer(const Json& json, const std::string& where);

  // Calls piece(bytes) for the pieces of `text` (valid UTF-8), none of them empty, in order.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  void add(const Json& json, const std::string& where, int depth);
  void split_from(size_t step, std::string_view text, const std::function<void(std::string_view)>& piece) const;

  std::vector<bool> digits_;  // one entry for each Digits step: individual_digits
  bool byte_level_ = false;
  bool add_prefix_space_ = false;
  bool use_regex_ = true;
  SplitRegex regex_;
};

}  // namespace lockstep::text
