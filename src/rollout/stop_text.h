// Watches the text of a growing sample for stop strings.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace lockstep::rollout {

class StopText {
 public:
  StopText() = default;  // never stops
  // `stops` and `tokenizer` outlive the object.
  StopText(const text::Tokenizer& tokenizer, std::span<const std::string> stops);

  // True once the text of the tokens so far holds a stop string; special tokens count with their text. Ids that only
  // pad the model's vocabulary have no text.
  bool push(int32_t token);

 private:
  std::span<const std::string> stops_;
  int64_t vocab_size_ = 0;
  size_t longest_ = 0;
  std::optional<text::StreamingDecoder> decoder_;
  std::string tail_;  // end of the text: what a stop string could begin in
};

}  // namespace lockstep::rollout
