// cos and sin for the positions in use, in the memory of one device. Models promise far more positions than most runs
// touch, so the table grows by need.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/rope.h"

namespace lockstep::model {

class RopeCache {
 public:
  RopeCache(std::vector<float> inv_freq, int64_t max_positions);

  // A table of at least `positions` rows (at most max_positions). A row's values do not depend on the table's size.
  // Any thread. A table lives as long as the cache, also when a larger one is made: captured graphs name its memory.
  std::shared_ptr<const kernels::RopeTable> covering(int64_t positions, Stream& stream);

 private:
  const std::vector<float> inv_freq_;
  const int64_t max_positions_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const kernels::RopeTable>> tables_;  // each at least twice the one before
};

}  // namespace lockstep::model
