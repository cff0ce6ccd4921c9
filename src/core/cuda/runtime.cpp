#include "core/cuda/runtime.h"

#include <cuda_runtime.h>

#include "core/cuda/check.h"
#include "core/cuda/queues.h"

namespace lockstep::cuda {

namespace {

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

// Runs once, before the process uses the GPU: afterwards the driver's pool keeps freed memory.
std::string probe() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    forget_error();
    return status == cudaSuccess ? "no CUDA device" : cudaGetErrorString(status);
  }
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "the CUDA device does not answer";
  if (properties.major < 8)
    return std::string(properties.name) + " has compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + ", and bf16 tensor cores need 8.0";
  cudaMemPool_t pool = nullptr;
  uint64_t keep_all = ~uint64_t{0};
  if (cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess ||
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all) != cudaSuccess)
    return std::string(properties.name) + " has no memory pools";
  return {};
}

}  // namespace

std::string unusable() {
  static const std::string why = probe();
  return why;
}

DeviceInfo info() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  check(cudaStreamSynchronize(Queues::get().memory()), "waiting for memory that was released");
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  // Memory that the pool keeps but nobody uses counts as free.
  cudaMemPool_t pool = nullptr;
  uint64_t reserved = 0, used = 0;
  check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), "cudaMemPoolGetAttribute");
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "cudaMemPoolGetAttribute");
  return {.name = properties.name,
          .free_bytes = static_cast<int64_t>(free_bytes + (reserved - used)),
          .total_bytes = static_cast<int64_t>(total_bytes),
          .multiprocessors = properties.multiProcessorCount};
}

void* allocate(size_t bytes) {
  const cudaStream_t stream = Queues::get().memory();
  // The pool reuses only memory whose release has completed; while releases are pending it would allocate more.
  check(cudaStreamSynchronize(stream), "waiting for memory that was released");
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes, stream);
  if (status == cudaErrorMemoryAllocation) {
    forget_error();
    return nullptr;
  }
  check(status, "cudaMallocAsync");
  // From here on the memory may be used on every stream.
  if (const cudaError_t there = cudaStreamSynchronize(stream); there != cudaSuccess) {
    cudaFreeAsync(memory, stream);  // the error above is the one to report
    check(there, "cudaMallocAsync");
  }
  return memory;
}

void release(void* memory) noexcept {
  // Called by a destructor, which cannot throw. If the memory's last use cannot be ordered it is not freed: the GPU
  // is lost then, which every later call reports.
  Queues& queues = Queues::get();
  if (queues.follow_all() != cudaSuccess || cudaFreeAsync(memory, queues.memory()) != cudaSuccess) forget_error();
}

void* make_stream(bool goes_first) {
  return Queues::get().add(goes_first);
}

void destroy_stream(void* stream) noexcept {
  // Called by a destructor: an error of queued work was reported to whoever waited for it.
  if (cudaStreamSynchronize(stream_of(stream)) != cudaSuccess) forget_error();
  Queues::get().remove(stream_of(stream));
}

void synchronize(void* stream) {
  check(cudaStreamSynchronize(stream_of(stream)), "waiting for the GPU");
}

bool recover(void* stream, void* second) noexcept {
  // The first wait may report what failed; the second one succeeds unless the GPU is lost.
  for (int i = 0; i < 2; ++i) {
    bool works = true;
    for (void* one : {stream, second}) works &= cudaStreamSynchronize(stream_of(one)) == cudaSuccess;
    if (works) break;
    forget_error();
    if (i == 1) return false;
  }
  forget_error();
  return true;
}

void* make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

void destroy_event(void* event) noexcept {
  if (cudaEventDestroy(static_cast<cudaEvent_t>(event)) != cudaSuccess) forget_error();  // called by a destructor
}

void record_event(void* event, void* stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "cudaEventRecord");
}

void wait_event(void* event, void* stream) {
  check(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
}

void zero(void* to, size_t bytes, void* stream) {
  check(cudaMemsetAsync(to, 0, bytes, stream_of(stream)), "cudaMemset");
}

void zero(void* to, size_t bytes) {
  void* const stream = Queues::get().memory();
  zero(to, bytes, stream);
  synchronize(stream);
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpy");
}

void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, void* stream) {
  check(cudaMemcpy2DAsync(to, stride, from, stride, bytes, count, cudaMemcpyDeviceToDevice, stream_of(stream)),
        "cudaMemcpy2D");
}

void begin_recording(void* stream, void* second) {
  Queues::get().begin_recording(stream_of(stream), stream_of(second));
}

void* end_recording(void* stream, void* second) {
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_of(stream), &graph);  // also after an error
  Queues::get().end_recording(stream_of(stream), stream_of(second));
  check(ended, "recording a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t prepared = cudaGraphInstantiate(&executable, graph, 0);
  const cudaError_t destroyed = cudaGraphDestroy(graph);
  check(prepared, "preparing a graph");
  if (destroyed != cudaSuccess) destroy_graph(executable);
  check(destroyed, "preparing a graph");
  return executable;
}

void abandon_recording(void* stream, void* second) noexcept {
  // The exception that led here is the one to report; ending the capture fails too.
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph) cudaGraphDestroy(graph);
  forget_error();
  Queues::get().end_recording(stream_of(stream), stream_of(second));
}

void launch_graph(void* graph, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "launching a graph");
}

void destroy_graph(void* graph) noexcept {
  if (cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)) != cudaSuccess) forget_error();  // in a destructor
}

bool lock_pages(void* memory, size_t bytes) noexcept {
  if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
  forget_error();
  return false;
}

void unlock_pages(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) forget_error();
}

}  // namespace lockstep::cuda
