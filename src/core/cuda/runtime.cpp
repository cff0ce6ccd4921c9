#include "core/cuda/runtime.h"

#include <cuda_runtime.h>

#include "core/error.h"

namespace lockstep::cuda {

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError({.what = "a CUDA call failed",
                     .where = what,
                     .got = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status)});
}

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

// The first question the process asks of the GPU; afterwards the driver's pool keeps released memory.
std::string probe() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
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
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  // What the pool keeps but nobody uses is free to us.
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
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes, nullptr);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaMallocAsync");
  check(cudaStreamSynchronize(nullptr), "cudaMallocAsync");
  return memory;
}

void release(void* memory) {
  // In a destructor: an error here has been, or will be, reported by the op that caused it.
  cudaDeviceSynchronize();
  cudaFreeAsync(memory, nullptr);
  cudaStreamSynchronize(nullptr);
}

void* make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

void destroy_stream(void* stream) {
  cudaStreamSynchronize(stream_of(stream));
  cudaStreamDestroy(stream_of(stream));
}

void synchronize(void* stream) {
  check(cudaStreamSynchronize(stream_of(stream)), "waiting for the GPU");
}

void* make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

void destroy_event(void* event) {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void record_event(void* event, void* stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "cudaEventRecord");
}

void wait_event(void* event, void* stream) {
  check(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
}

void zero(void* to, size_t bytes, void* stream) {
  check(cudaMemsetAsync(to, 0, bytes, stream_of(stream)), "cudaMemset");
  if (stream == nullptr) synchronize(nullptr);
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpy");
}

void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, void* stream) {
  check(cudaMemcpy2DAsync(to, stride, from, stride, bytes, count, cudaMemcpyDeviceToDevice, stream_of(stream)),
        "cudaMemcpy2D");
}

void begin_recording(void* stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "recording a graph");
}

void* end_recording(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "recording a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "preparing a graph");
  return executable;
}

void abandon_recording(void* stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void launch_graph(void* graph, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "launching a graph");
}

void destroy_graph(void* graph) {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace lockstep::cuda
