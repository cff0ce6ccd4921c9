// What the GPU kernels keep from op to op on one stream (Stream::kernel_state()).
#pragma once

#include <cublasLt.h>

#include <memory>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::kernels::cuda {

struct LinearChoices;  // linear.cu: the kernel chosen for each shape
struct Staging;        // pack.cu: pinned host memory on its way to the GPU

struct Library {
  cublasLtHandle_t blas = nullptr;
  Buffer workspace;  // of cuBLASLt
  Buffer scratch;    // scratch_of
  std::shared_ptr<LinearChoices> linear;
  std::shared_ptr<Staging> staging;
  int multiprocessors = 0;

  explicit Library(Stream& stream);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

Library& library_of(Stream& stream);  // made at the first use; DeviceError

// At least `bytes` of device memory, contents undefined, valid until the next call: for results that travel between the
// kernels of one op. Grows by replacement, so never ask for more inside a graph capture than before it (DeviceError).
void* scratch_of(Stream& stream, size_t bytes);

}  // namespace lockstep::kernels::cuda
