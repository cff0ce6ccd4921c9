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

  // The first of the stop strings that the text of the tokens so far holds, -1: none; special tokens count with their
  // text. Ids that only pad the model's vocabulary have no text. What ends before `counts` is passed over for good.
  int64_t push(int32_t token, bool counts = true);

 private:
  std::span<const std::string> stops_;
  int64_t vocab_size_ = 0;
  size_t longest_ = 0;
  std::optional<text::StreamingDecoder> decoder_;
  std::string tail_;  // end of the text: what a stop string could begin in
};

}  // namespace lockstep::rollout
