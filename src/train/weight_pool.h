// Buffers for the next weights. A version that nobody holds any more gives its buffer back, so that a long run does not
// allocate at every step.
#pragma once

#include <memory>
#include <mutex>

#include "core/memory.h"

namespace lockstep::train {

// The pool lives as long as the last buffer it lent. Buffers may come back on any thread.
class WeightPool : public std::enable_shared_from_this<WeightPool> {
 public:
  WeightPool(size_t bytes, Device device) : bytes_(bytes), device_(device) {}
  std::shared_ptr<Buffer> take();  // contents undefined

 private:
  void give(std::unique_ptr<Buffer> buffer);

  const size_t bytes_;
  const Device device_;
  std::mutex mutex_;
  std::unique_ptr<Buffer> free_;  // one is enough: steps take one buffer and let go of one
};

}  // namespace lockstep::train
