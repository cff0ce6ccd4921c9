#include "rollout/local/stop_text.h"

#include <algorithm>

namespace lockstep::rollout {

StopText::StopText(const text::Tokenizer& tokenizer, std::span<const std::string> stops)
    : stops_(stops), vocab_size_(tokenizer.vocab_size()) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
  if (longest_ > 0) decoder_.emplace(tokenizer, /*skip_special=*/false);
}

int64_t StopText::push(int32_t token, bool counts) {
  if (!decoder_ || token >= vocab_size_) return -1;
  const size_t known = tail_.size();
  tail_ += decoder_->push(token);
  for (size_t i = 0; counts && i < stops_.size(); ++i) {
    // Only matches that end in this token's text count: the tail, kept for the longest string, may hold a shorter one.
    const size_t size = stops_[i].size(), first = known < size ? 0 : known - size + 1;
    if (tail_.find(stops_[i], first) != std::string::npos) return static_cast<int64_t>(i);
  }
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return -1;
}

}  // namespace lockstep::rollout
