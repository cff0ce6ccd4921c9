// The streams of this process, and when memory that is given back may be used again.
//
// CUDA invalidates every recording on a device when any thread synchronizes that device, or the stream that is being
// recorded, and an event put into such a stream becomes part of the graph. So nothing here waits for the device or for
// another thread's stream, and it is known which streams are being recorded:
//   - Memory is taken and given back on a stream of its own, which is never recorded.
//   - Memory that is given back is free behind an event of every stream. A stream that is being recorded runs nothing
//     meanwhile: its event is one from just before.
//   - A graph may name memory that has gone. It is launched only while somebody holds what it was recorded for
//     (rollout/local/step_graphs.h), and what was launched before lies ahead of the event.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <vector>

namespace lockstep::cuda {

class Queues {
 public:
  // Of the process: the driver's pool of memory is as well, and a Buffer is freed wherever its last holder lets go.
  static Queues& get();

  // DeviceError
  cudaStream_t add();
  void remove(cudaStream_t stream) noexcept;  // nothing runs on it any more
  // Around a recording on these two, which are of one Stream.
  void begin_recording(cudaStream_t stream, cudaStream_t second);
  void end_recording(cudaStream_t stream, cudaStream_t second) noexcept;

  cudaStream_t memory() const { return memory_; }
  // Orders the memory stream behind all that is queued by now.
  cudaError_t follow_all() noexcept;

 private:
  struct Queue {
    cudaStream_t stream = nullptr;
    cudaEvent_t tail = nullptr;  // behind all that was queued when somebody asked
    bool recording = false;      // the event is of the moment before
  };

  Queues();
  Queue& find(cudaStream_t stream);

  std::mutex mutex_;
  std::vector<Queue> queues_;
  cudaStream_t memory_ = nullptr;
};

}  // namespace lockstep::cuda
