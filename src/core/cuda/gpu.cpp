#include "core/cuda/gpu.h"

#include <cuda_runtime.h>

#include "core/cuda/check.h"

namespace lockstep::cuda {

namespace {
std::string hex(const cudaUUID_t& id) {
  std::string text;
  for (const char byte : id.bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(static_cast<unsigned char>(byte) >> shift) & 15];
  return text;
}
}  // namespace

int num_gpus() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  forget_error();
  return 0;
}

GpuIdentity gpu_identity() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return {.compute_capability = 10 * properties.major + properties.minor, .uuid = hex(properties.uuid)};
}

bool is_done(void* stream) {
  const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
  if (status == cudaErrorNotReady) {
    forget_error();
    return false;
  }
  check(status, "asking whether the GPU is done");
  return true;
}

}  // namespace lockstep::cuda
