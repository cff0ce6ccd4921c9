#include "rollout/local/step_graphs.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep::rollout {

const Graph* StepGraphs::find(const Key& key) const {
  const auto found = graphs_.find(key);
  return found == graphs_.end() ? nullptr : &found->second;
}

const Graph* StepGraphs::record(const Key& key, const std::function<Graph()>& record) {
  if (calls_to_skip_ > 0) {
    --calls_to_skip_;
    return nullptr;
  }
  if (graphs_.size() >= kMaxGraphs) clear();  // most of them belong to shapes and layouts that are gone
  try {
    Graph graph = record();
    pause_ = 0;
    ++recordings_;
    return &(graphs_[key] = std::move(graph));
  } catch (const Error&) {
    ++failures_;
    calls_to_skip_ = pause_ = std::min(2 * pause_ + 1, kMaxPause);
    return nullptr;
  }
}

}  // namespace lockstep::rollout
