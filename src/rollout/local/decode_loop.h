// Many decode steps on a GPU without the host: a captured graph of one step is launched again and again, each step's
// tokens are the next one's inputs, and the host reads the results of all steps at once.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "kernels/decode.h"
#include "lora/adapter_stack.h"
#include "model/model.h"
#include "rollout/local/block_pool.h"
#include "rollout/local/decode_batch.h"
#include "rollout/local/step_graphs.h"

namespace lockstep::rollout {

struct DecodeResults {
  int64_t stride = 0;  // entries per step; entry i of step s belongs to input i
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

// Graphs are cached by (rows rounded up, spans of keys rounded up, adapter layout, temperature of the log-probs). The
// adapter of all rows is copied to memory of the loop first, unless it is there already, so that the graphs of one
// version are those of the next, wherever its buffer lies; so are a few adapters of one layout, as versions of a policy
// are (lora::AdapterStack). With any others the key holds only upper bounds of the number of tiles and of the rank; of
// spans that inputs share it holds the rounded number.
// A step that cannot be recorded runs without a graph, with the same bits. One thread.
class DecodeLoop {
 public:
  static constexpr int64_t kMaxSteps = 16;

  // while_recording: EngineOptions::while_recording
  DecodeLoop(const model::Model& model, BlockPool& pool, Stream& stream, std::function<void()> while_recording);

  // `results` is overwritten and valid for `steps` steps (at most kMaxSteps). Results after a sequence's end are
  // meaningless. Every row's bits are those of running it alone. It is fastest if inputs of one adapter are adjacent,
  // and among them those of one prompt.
  void run(std::span<const DecodeInput> inputs, int64_t steps, float inv_temperature, DecodeResults& results);
  void forget_graphs() { graphs_.clear(); }
  int64_t failed_recordings() const { return graphs_.failures(); }
  int64_t recordings() const { return graphs_.recordings(); }

 private:
  void choose_adapters(std::span<const DecodeInput> inputs);
  const lora::AdapterVersion* in_slot(const lora::AdapterVersion& adapter);
  bool stack(std::span<const lora::AdapterRows> runs);  // false: tiles it is
  // nullptr: the places are of another layout that is in use, or there is no memory.
  lora::AdapterStack* stack_of(const std::shared_ptr<const lora::AdapterLayout>& layout, int64_t places);
  kernels::DecodeState place(std::span<const DecodeInput> inputs, const DecodeShape& shape);
  void reserve(const DecodeShape& shape);
  size_t span_bytes(const DecodeShape& shape) const;
  StepGraphs::Key key_of(const DecodeShape& shape, float inv_temperature) const;
  void step(const kernels::DecodeState& state, float inv_temperature);

  const model::Model& model_;
  BlockPool& pool_;
  Stream& stream_;
  const std::function<void()> while_recording_;
  Buffer state_, results_, spans_;  // device
  std::vector<std::byte> staged_;
  kernels::DeviceSequences sequences_;  // in state_
  // For the current run: one adapter for all rows, or a stack of them, or tiles of rows, or nothing.
  const lora::AdapterVersion* adapter_ = nullptr;  // slot_, or of a stack
  lora::AdapterVersion slot_;                      // a copy whose address stays
  std::shared_ptr<const Buffer> slot_source_;      // what it is a copy of: held, so that nobody writes another there
  struct Stack {
    lora::AdapterStack adapters;
    int64_t last_run = 0;
  };
  std::map<int64_t, Stack> stacks_;    // by their places
  int64_t runs_ = 0, next_stack_ = 0;  // so far; the first that may make a stack again
  BatchAdapters several_;
  kernels::LoraTiles tiles_;
  kernels::RankRows rank_rows_;
  Arena arena_;
  StepGraphs graphs_;
};

}  // namespace lockstep::rollout
