#include "model/rope_cache.h"

#include <algorithm>
#include <utility>

namespace lockstep::model {

namespace {
constexpr int64_t kFirstPositions = 1024;
}

RopeCache::RopeCache(std::vector<float> inv_freq, int64_t max_positions)
    : inv_freq_(std::move(inv_freq)), max_positions_(max_positions) {}

std::shared_ptr<const kernels::RopeTable> RopeCache::covering(int64_t positions, Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (tables_.empty() || tables_.back()->positions < positions) {
    int64_t rows = kFirstPositions;
    while (rows < positions) rows *= 2;
    rows = std::max(positions, std::min(rows, max_positions_));
    auto table = std::make_shared<const kernels::RopeTable>(kernels::make_rope_table(inv_freq_, rows, 1, stream));
    stream.synchronize();  // other streams will read it
    tables_.push_back(std::move(table));
  }
  return tables_.back();
}

}  // namespace lockstep::model
