#include <algorithm>
#include <mutex>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

namespace {
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kMinScratchBytes = size_t{16} << 20;
constexpr size_t kExchangeBytes = HExchange::kColumnBlocks * HExchange::bytes_of_column_block(kRingRows);

// cuBLASLt's handles are never destroyed: that synchronizes the device, which invalidates any graph capture that
// another thread has open (core/cuda/queues.h). Handles of streams that are gone are reused by later streams.
class Handles {
 public:
  static Handles& get() {
    static Handles& handles = *new Handles;  // never destroyed, because static Streams may outlive it
    return handles;
  }
  cublasLtHandle_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cublasLtHandle_t handle = free_.back();
        free_.pop_back();
        return handle;
      }
    }
    cublasLtHandle_t handle = nullptr;
    if (const cublasStatus_t status = cublasLtCreate(&handle); status != CUBLAS_STATUS_SUCCESS)
      throw DeviceError({.what = "cuBLASLt does not start", .got = cublasLtGetStatusString(status)});
    return handle;
  }
  void give(cublasLtHandle_t handle) {
    const std::lock_guard lock(mutex_);
    free_.push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::vector<cublasLtHandle_t> free_;
};

}  // namespace

Library::Library(Stream&)
    : workspace(kWorkspaceBytes, Buffer::Fill::none, Device::cuda),
      counters((4 + kMaxReady + 2) * sizeof(uint32_t), Buffer::Fill::zero, Device::cuda),
      h_exchange(kExchangeBytes, Buffer::Fill::zero, Device::cuda),
      attention_parts(kAttentionPartBytes, Buffer::Fill::zero, Device::cuda) {
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  blas = Handles::get().take();  // last, because the destructor does not run if the constructor throws
}

Library::~Library() {
  Handles::get().give(blas);
}

Library& library_of(Stream& stream) {
  std::shared_ptr<void>& state = stream.kernel_state();
  if (!state) state = std::make_shared<Library>(stream);
  return *static_cast<Library*>(state.get());
}

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void* scratch_of(Stream& stream, size_t bytes) {
  Library& library = library_of(stream);
  const size_t held = library.scratch.empty() ? 0 : library.scratch.back().bytes();
  if (held >= bytes) return library.scratch.empty() ? nullptr : library.scratch.back().data();
  if (is_capturing(stream))
    throw DeviceError({.what = "scratch memory would have to grow inside a graph capture",
                       .got = std::to_string(bytes) + " bytes",
                       .wanted = "at most " + std::to_string(held)});
  library.scratch.emplace_back(std::max({bytes, kMinScratchBytes, 2 * held}), Buffer::Fill::none, Device::cuda);
  return library.scratch.back().data();
}

}  // namespace lockstep::kernels::cuda
