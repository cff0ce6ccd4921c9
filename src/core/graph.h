// A captured sequence of GPU ops that is launched as one: a launch costs microseconds, however many ops it contains.
#pragma once

#include <functional>

#include "core/stream.h"

namespace lockstep {

// Move only. Launches read and write the memory addresses of the capture.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  static bool can_record(const Stream& stream);  // on a GPU

  // Captures what `work` queues on the stream; nothing runs. `work` must not wait, allocate device memory or use host
  // memory: DeviceError otherwise, and on a CPU stream. Other threads may use the GPU meanwhile, but not this stream.
  // After an exception, from `work` or from the capture, the stream can be used as before.
  static Graph record(Stream& stream, const std::function<void()>& work);
  void launch(Stream& stream) const;  // queued

 private:
  void* graph_ = nullptr;
};

}  // namespace lockstep
