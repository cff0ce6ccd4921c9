// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/error.h"

namespace lockstep::cuda {

// Also clears the thread's last error, so that the next call that asks for it is not blamed for this one. An error that
// has ended the GPU's context is returned by every later call.
inline void forget_error() {
  cudaGetLastError();
}

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  forget_error();
  throw DeviceError({.what = "a CUDA call failed",
                     .where = what,
                     .got = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status)});
}

}  // namespace lockstep::cuda
