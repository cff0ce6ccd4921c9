// cos and sin for the positions in use. Models promise far more positions than most runs touch, so the table grows by
// need.
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
  // Any thread; the table stays valid for its holder when another thread makes a larger one.
  std::shared_ptr<const kernels::RopeTable> covering(int64_t positions);

 private:
  const std::vector<float> inv_freq_;
  const int64_t max_positions_;
  std::mutex mutex_;
  std::shared_ptr<const kernels::RopeTable> table_;
};

}  // namespace lockstep::model
