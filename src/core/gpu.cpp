#include "core/gpu.h"

#include "core/cuda/gpu.h"
#include "core/error.h"

namespace lockstep {

int num_gpus() {
  return cuda::num_gpus();
}

GpuIdentity gpu_identity() {
  if (const std::string why = cuda_unusable(); !why.empty())
    throw DeviceError({.what = "no GPU can be used", .got = why});
  return cuda::gpu_identity();
}

bool is_done(const Stream& stream) {
  return stream.native() == nullptr || cuda::is_done(stream.native());
}

}  // namespace lockstep
