#include "train/weight_pool.h"

#include <utility>

namespace lockstep::train {

std::shared_ptr<Buffer> WeightPool::take() {
  std::unique_ptr<Buffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    buffer = std::move(free_);
  }
  if (!buffer) buffer = std::make_unique<Buffer>(bytes_, Buffer::Fill::none, device_);
  return {buffer.release(), [pool = shared_from_this()](Buffer* back) { pool->give(std::unique_ptr<Buffer>(back)); }};
}

void WeightPool::give(std::unique_ptr<Buffer> buffer) {
  const std::lock_guard lock(mutex_);
  free_ = std::move(buffer);
}

}  // namespace lockstep::train
