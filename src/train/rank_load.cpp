#include "train/rank_load.h"

#include <algorithm>

#include "train/lane_range.h"

namespace lockstep::train {

void RankLoad::add(const Trainer& trainer, std::span<const Datum> datums, int64_t datums_per_term, int ranks) {
  if (ranks < 2) return;
  const std::vector<int64_t> order = trainer.order_of(datums, datums_per_term);
  const auto terms = static_cast<int64_t>(datums.size()) / datums_per_term;
  int64_t longest = 0, total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    // A rank's lanes hold what one lane of so many would.
    const SampleRange own = samples_of({.begin = rank, .end = rank + 1, .of = ranks}, terms);
    int64_t tokens = 0;
    for (int64_t i = own.begin * datums_per_term; i < own.end * datums_per_term; ++i)
      tokens += datums[static_cast<size_t>(order.empty() ? i : order[static_cast<size_t>(i)])].size();
    longest = std::max(longest, tokens);
    total += tokens;
  }
  longest_ += static_cast<double>(longest);
  mean_ += static_cast<double>(total) / ranks;
}

std::optional<double> RankLoad::imbalance() const {
  return mean_ > 0 ? std::optional(longest_ / mean_) : std::nullopt;
}

}  // namespace lockstep::train
