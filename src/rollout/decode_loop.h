// Many decode steps on a GPU without the host: a captured graph of one step is launched again and again, each step's
// tokens are the next one's inputs, and the host reads the results of all steps at once.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "core/graph.h"
#include "kernels/decode.h"
#include "model/model.h"
#include "rollout/block_pool.h"

namespace lockstep::rollout {

// One running sequence: its next input and what lies before it.
struct DecodeInput {
  int32_t token = 0, position = 0;
  std::span<void* const> blocks;                  // for every position of the steps to come
  kernels::SampleRow sample;                      // how the token after `position` is drawn
  const lora::AdapterVersion* adapter = nullptr;  // nullptr: base
};

struct DecodeResults {
  int64_t stride = 0;  // entries per step; entry i of step s is of input i
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

// Graphs are kept by (rows rounded up, spans of keys rounded up, adapter buffer, adapter layout, temperature of the
// log-probs), so a published version costs nothing once its buffer has been seen. Of several adapters a graph knows
// only how many tiles of rows and which rank there are at most, of spans that inputs share only how many, rounded up.
// One thread.
class DecodeLoop {
 public:
  static constexpr int64_t kMostSteps = 16;
  static constexpr size_t kMostGraphs = 256;

  DecodeLoop(const model::Model& model, BlockPool& pool, Stream& stream);

  // `results` is overwritten and valid for `steps` steps (at most kMostSteps). A result after a sequence's end means
  // nothing. Every row's bits are those of running it alone. Inputs of one adapter are best side by side, and among
  // them those of one prompt.
  void run(std::span<const DecodeInput> inputs, int64_t steps, float inv_temperature, DecodeResults& results);

 private:
  using Key = std::tuple<int64_t, int64_t, const void*, const void*, float, int64_t, int64_t, int64_t, int64_t>;
  struct Recorded {
    Graph graph;
    // Alive, so that its address in the key names no other: memory of an adapter that is gone goes to the next one.
    std::shared_ptr<const lora::AdapterLayout> layout;
  };

  void choose_adapters(std::span<const DecodeInput> inputs);
  kernels::DecodeState place(std::span<const DecodeInput> inputs, int64_t rows, int64_t spans);
  void step(const kernels::DecodeState& state, int64_t spans, float inv_temperature);

  const model::Model& model_;
  BlockPool& pool_;
  Stream& stream_;
  Buffer state_, results_, spans_;  // device
  std::vector<std::byte> staged_;
  kernels::DeviceSequences sequences_;  // in state_
  // Of the run: one adapter for all rows, or tiles of rows, or neither.
  const lora::AdapterVersion* adapter_ = nullptr;
  lora::AdapterTiles host_tiles_;
  kernels::LoraTiles tiles_;
  Arena arena_;
  std::map<Key, Recorded> graphs_;
};

}  // namespace lockstep::rollout
