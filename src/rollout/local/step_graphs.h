// The recorded decode steps of a DecodeLoop, by their key.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "core/graph.h"
#include "lora/adapter.h"
#include "rollout/local/decode_batch.h"

namespace lockstep::rollout {

// A graph contains addresses and keeps none of that memory alive: all of it belongs to the loop, which clears the
// graphs before it moves. One thread.
class StepGraphs {
 public:
  static constexpr size_t kMaxGraphs = 256;
  static constexpr int64_t kMaxPause = 1023;

  // Of the adapter of all rows, or of a stack, which have one address whichever they hold; none if rows use the base,
  // or tiles.
  struct OneAdapter {
    std::shared_ptr<const lora::AdapterLayout> layout;
    auto operator<=>(const OneAdapter&) const = default;
  };
  // For rows with several adapters: upper bounds, whichever they are.
  struct TileSizes {
    int64_t tiles = 0, sites = 0, max_rank = 0;
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
  // Stores what `record` returns. If it throws an Error, this returns nullptr and the step must run without a graph;
  // the next calls then return nullptr without trying: 1 call, then 3, 7, ... kMaxPause, until a recording succeeds.
  const Graph* record(const Key& key, const std::function<Graph()>& record);
  void clear() { graphs_.clear(); }
  int64_t failures() const { return failures_; }
  int64_t recordings() const { return recordings_; }

 private:
  std::map<Key, Graph> graphs_;
  int64_t recordings_ = 0, failures_ = 0, pause_ = 0, calls_to_skip_ = 0;
};

}  // namespace lockstep::rollout
