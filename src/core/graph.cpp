#include "core/graph.h"

#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace lockstep {

Graph::Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

Graph::~Graph() {
  if (graph_) cuda::destroy_graph(graph_);
}

bool Graph::can_record(const Stream& stream) {
  return stream.device() == Device::cuda;
}

Graph Graph::record(Stream& stream, const std::function<void()>& work) {
  if (!can_record(stream)) throw DeviceError({.what = "only a GPU's work can be recorded as a graph"});
  const auto [queue, second] = stream.queues();
  cuda::begin_recording(queue, second);
  try {
    work();
  } catch (...) {
    cuda::abandon_recording(queue, second);
    throw;
  }
  Graph graph;
  graph.graph_ = cuda::end_recording(queue, second);
  return graph;
}

void Graph::launch(Stream& stream) const {
  cuda::launch_graph(graph_, stream.native());
}

}  // namespace lockstep
