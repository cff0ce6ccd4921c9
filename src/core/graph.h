// A recorded sequence of GPU ops that is launched as one: launching costs microseconds however many ops it holds.
#pragma once

#include <functional>

#include "core/stream.h"

namespace lockstep {

// Move only. Launches read and write the memory that was named when it was recorded.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  static bool can_record(const Stream& stream);  // on a GPU

  // Records what `work` queues on the stream; nothing runs. `work` must not wait, allocate device memory or touch the
  // host's: DeviceError otherwise, and on a CPU stream. Other threads may use the GPU meanwhile, but not this stream.
  // After an exception, of `work` or of recording, the stream can be used as before.
  static Graph record(Stream& stream, const std::function<void()>& work);
  void launch(Stream& stream) const;  // queued

 private:
  void* graph_ = nullptr;
};

}  // namespace lockstep
