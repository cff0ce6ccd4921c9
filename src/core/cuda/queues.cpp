#include "core/cuda/queues.h"

#include <algorithm>

#include "core/cuda/check.h"

namespace lockstep::cuda {

Queues::Queues() {
  check(cudaStreamCreateWithFlags(&memory_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Queues& Queues::get() {
  static Queues& queues = *new Queues;  // never destroyed, because static Buffers may outlive it
  return queues;
}

Queues::Queue& Queues::find(cudaStream_t stream) {
  return *std::ranges::find(queues_, stream, &Queue::stream);
}

cudaStream_t Queues::add(bool goes_first) {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  Queue added;
  check(cudaStreamCreateWithPriority(&added.stream, cudaStreamNonBlocking, goes_first ? highest : lowest),
        "cudaStreamCreate");
  if (const cudaError_t status = cudaEventCreateWithFlags(&added.tail, cudaEventDisableTiming); status != cudaSuccess) {
    cudaStreamDestroy(added.stream);  // the error above is the one to report
    check(status, "cudaEventCreate");
  }
  const std::lock_guard lock(mutex_);
  queues_.push_back(added);
  return added.stream;
}

void Queues::remove(cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  // Called by a destructor, which cannot throw. If this fails the GPU is lost, which every later call reports.
  cudaEventDestroy(find(stream).tail);
  cudaStreamDestroy(stream);
  std::erase_if(queues_, [&](const Queue& queue) { return queue.stream == stream; });
  forget_error();
}

void Queues::begin_recording(cudaStream_t stream, cudaStream_t second) {
  const std::lock_guard lock(mutex_);
  for (const cudaStream_t one : {stream, second}) check(cudaEventRecord(find(one).tail, one), "cudaEventRecord");
  // The mode concerns calls of this thread only; the head of queues.h says what other threads must not do.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a graph");
  for (const cudaStream_t one : {stream, second}) find(one).recording = true;
}

void Queues::end_recording(cudaStream_t stream, cudaStream_t second) noexcept {
  const std::lock_guard lock(mutex_);
  for (const cudaStream_t one : {stream, second}) find(one).recording = false;
}

cudaError_t Queues::follow_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Queue& queue : queues_) {
    if (!queue.recording)
      if (const cudaError_t status = cudaEventRecord(queue.tail, queue.stream); status != cudaSuccess) return status;
    if (const cudaError_t status = cudaStreamWaitEvent(memory_, queue.tail, 0); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace lockstep::cuda
