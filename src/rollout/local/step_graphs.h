// The recorded decode steps of a DecodeLoop, by what they were recorded for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "core/graph.h"
#include "lora/adapter.h"
#include "rollout/local/decode_batch.h"

namespace lockstep::rollout {

// A graph names memory and keeps none of it alive. So a step's graph may be launched only for inputs that hold all of
// it: what belongs to the loop outlives the graphs (clear()), and the adapter is that of the inputs, found by the
// address of its buffer. Memory of an adapter that is gone may be another one's by now; the layout in the key tells
// them apart, and is kept alive for it. One thread.
class StepGraphs {
 public:
  static constexpr size_t kMaxGraphs = 256;
  static constexpr int64_t kLongestPause = 1023;

  // The adapter of all rows, by the address of its buffer; none where rows have the base, or several.
  struct OneAdapter {
    const void* weights = nullptr;
    std::shared_ptr<const lora::AdapterLayout> layout;
    auto operator<=>(const OneAdapter&) const = default;
  };
  // Of rows with several adapters: how many at most, whichever they are.
  struct TileSizes {
    int64_t tiles = 0, sites = 0, most_rank = 0;
    auto operator<=>(const TileSizes&) const = default;
  };
  struct Key {
    DecodeShape shape;
    int64_t shared_spans = 0;
    float inv_temperature = 1;
    OneAdapter adapter = {};
    TileSizes tiles = {};
    auto operator<=>(const Key&) const = default;
  };

  const Graph* find(const Key& key) const;  // nullptr: there is none. Valid until record() or clear()
  // Keeps what `record` returns. When it throws an Error this returns nullptr and the step has to run without a graph;
  // so it does without asking for a while then: 1 call, then 3, 7, ... kLongestPause, until one succeeds.
  const Graph* record(const Key& key, const std::function<Graph()>& record);
  void clear() { graphs_.clear(); }
  int64_t failures() const { return failures_; }

 private:
  std::map<Key, Graph> graphs_;
  int64_t failures_ = 0, pause_ = 0, calls_to_skip_ = 0;
};

}  // namespace lockstep::rollout
