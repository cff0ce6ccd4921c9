// What the GPU kernels keep from op to op on one stream (Stream::kernel_state()).
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::kernels::cuda {

struct LinearChoices;  // linear.cu: the kernel chosen for each shape
struct Staging;        // pack.cu: pinned host buffers for uploads

struct Library {
  cublasLtHandle_t blas = nullptr;
  Buffer workspace;  // of cuBLASLt
  // Zero between launches: the first of linear_ring_adapter.cuh, attention_counters(), ready_counters(), tile_claims().
  Buffer counters;
  Buffer h_exchange;            // zero between launches: of linear_ring_adapter.cuh
  Buffer attention_parts;       // zero between launches: of attention_decode_exchange.cuh
  std::vector<Buffer> scratch;  // scratch_of returns the last; captured graphs may still use the earlier ones
  std::shared_ptr<LinearChoices> linear;
  std::shared_ptr<Staging> staging;
  std::shared_ptr<void> only_backward;  // lora_gradient.cu: held by one stream of the process
  int multiprocessors = 0;

  explicit Library(Stream& stream);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  static constexpr int64_t kMaxReady = 4096;
  static constexpr int64_t kAttentionPartBytes = 128 * 8192;  // 8 KB for each of 128 thread blocks
  uint32_t* attention_counters() const { return static_cast<uint32_t*>(counters.data()) + 2; }
  uint32_t* ready_counters() const { return static_cast<uint32_t*>(counters.data()) + 4; }  // kMaxReady
  uint32_t* tile_claims() const { return ready_counters() + kMaxReady; }                    // 2, of linear_row.cu
};

Library& library_of(Stream& stream);  // created at the first use; DeviceError

bool is_capturing(const Stream& stream);

// At least `bytes` of device memory, contents undefined, valid until the next call: for results passed between the
// kernels of one op. Cannot grow inside a graph capture: run the same ops once before (DeviceError).
void* scratch_of(Stream& stream, size_t bytes);

}  // namespace lockstep::kernels::cuda
