// A stream on the GPU for tests.
#pragma once

#include <cstdlib>

#include "kernels/kernel_choice.h"

namespace lockstep::testing {

// Where LOCKSTEP_UNTIMED_KERNELS is set (tools/gpu_sanitizer.sh) matmuls take the first of their kernels, because
// timing all of them would be most of what compute-sanitizer has to watch.
class GpuStream : public Stream {
 public:
  explicit GpuStream(StreamOptions options = {}) : Stream(on_gpu(options)) {
    if (std::getenv("LOCKSTEP_UNTIMED_KERNELS") != nullptr)
      kernels::choose_kernels(kernels::KernelChoice::first, *this);
  }

 private:
  static StreamOptions on_gpu(StreamOptions options) {
    options.device = Device::cuda;
    return options;
  }
};

}  // namespace lockstep::testing
