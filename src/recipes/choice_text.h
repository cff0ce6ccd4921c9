// The text of one growing sample as its client sees it: whole characters, stop strings left out, and nothing shown that
// a later token may turn into a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lockstep::recipes {

// Finds a stop string in a text that comes in parts (Knuth, Morris, Pratt): O(1) a byte, whatever the string.
class StopMatcher {
 public:
  explicit StopMatcher(std::string stop);
  // Reads one byte. True: the text ends with the stop string.
  bool push(char byte);
  // Bytes at the text's end that more could turn into the stop string.
  size_t begun() const { return matched_ < stop_.size() ? matched_ : fallback_[matched_]; }
  size_t size() const { return stop_.size(); }

 private:
  std::string stop_;
  std::vector<size_t> fallback_;  // of the first i bytes matched: the longest proper beginning that they end with
  size_t matched_ = 0;
};

class ChoiceText {
 public:
  struct Options {
    std::vector<std::string> stop = {};
    bool include_stop = false;
    bool skip_special = true;
  };
  // `tokenizer` outlives it.
  ChoiceText(const text::Tokenizer& tokenizer, const Options& options);

  // Each returns what can be shown now. Together: the text of the tokens, without a last character that never became
  // whole.
  std::string push(int32_t token);
  std::string finish();                                    // no more tokens
  std::string finish_by_token(int32_t token);              // with this token, a stop token
  std::string finish_by_text(int32_t token, size_t stop);  // with this token, which completes that stop string

 private:
  size_t read(const std::string& text, size_t stop);

  bool include_stop_;
  text::StreamingDecoder decoder_;
  std::vector<StopMatcher> stops_;
  std::string held_;  // could begin a stop string
};

}  // namespace lockstep::recipes
