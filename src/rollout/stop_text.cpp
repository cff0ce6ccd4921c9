#include "rollout/stop_text.h"

#include <algorithm>

namespace lockstep::rollout {

StopText::StopText(const text::Tokenizer& tokenizer, std::span<const std::string> stops)
    : stops_(stops), vocab_size_(tokenizer.vocab_size()) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
  if (longest_ > 0) decoder_.emplace(tokenizer, /*skip_special=*/false);
}

bool StopText::push(int32_t token) {
  if (!decoder_ || token >= vocab_size_) return false;
  tail_ += decoder_->push(token);
  for (const std::string& stop : stops_)
    if (tail_.find(stop) != std::string::npos) return true;
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return false;
}

}  // namespace lockstep::rollout
