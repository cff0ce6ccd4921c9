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
  // `stops` and `tokenizer` must outlive the object.
  StopText(const text::Tokenizer& tokenizer, std::span<const std::string> stops);

  // The first of the stop strings that the text so far contains, or -1. Special tokens count with their text; ids that
  // only pad the model's vocabulary have no text. Matches that end before `counts` are ignored for good.
  int64_t push(int32_t token, bool counts = true);

 private:
  std::span<const std::string> stops_;
  int64_t vocab_size_ = 0;
  size_t longest_ = 0;
  std::optional<text::StreamingDecoder> decoder_;
  std::string tail_;  // the end of the text, in which a stop string may begin
};

}  // namespace lockstep::rollout
