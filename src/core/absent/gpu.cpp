#include "core/cuda/gpu.h"

#include "core/absent/without_cuda.h"

namespace lockstep::cuda {

int num_gpus() {
  return 0;
}
GpuIdentity gpu_identity() {
  refuse_without_cuda();
}
bool is_done(void*) {
  refuse_without_cuda();
}

}  // namespace lockstep::cuda
