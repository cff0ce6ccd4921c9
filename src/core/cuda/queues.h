// The streams of this process, and when freed memory may be used again.
//
// CUDA invalidates every graph capture on a device when any thread synchronizes that device, or the stream that is
// being captured; an event recorded in such a stream becomes part of the graph. So nothing here waits for the device or
// another thread's stream, and this class knows which streams are being captured:
//   - Memory is allocated and freed on a stream of its own, which is never captured.
//   - Freed memory becomes available after an event of every stream. A stream that is being captured runs nothing
//     meanwhile: its event was recorded just before the capture.
//   - A graph may name memory that has been freed. It is launched only while somebody holds what it was captured for
//     (rollout/local/step_graphs.h), and earlier launches precede the event.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <vector>

namespace lockstep::cuda {

class Queues {
 public:
  // One per process: the driver's memory pool is too, and a Buffer may be freed on any thread.
  static Queues& get();

  // DeviceError
  cudaStream_t add(bool goes_first);  // before the others: the highest priority
  void remove(cudaStream_t stream) noexcept;  // when nothing runs on it any more
  // Call around a capture of these two queues, which belong to one Stream.
  void begin_recording(cudaStream_t stream, cudaStream_t second);
  void end_recording(cudaStream_t stream, cudaStream_t second) noexcept;

  cudaStream_t memory() const { return memory_; }
  // Makes the memory stream wait for everything that is queued by now.
  cudaError_t follow_all() noexcept;

 private:
  struct Queue {
    cudaStream_t stream = nullptr;
    cudaEvent_t tail = nullptr;  // after everything that was queued when it was last recorded
    bool recording = false;      // the event is the one from just before the capture
  };

  Queues();
  Queue& find(cudaStream_t stream);

  std::mutex mutex_;
  std::vector<Queue> queues_;
  cudaStream_t memory_ = nullptr;
};

}  // namespace lockstep::cuda
