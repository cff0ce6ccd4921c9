// What a training pass wants of its batch, and the batch as the blocks see it.
#pragma once

#include <span>
#include <vector>

#include "model/block.h"
#include "model/train_pass.h"

namespace lockstep::model {

using SequenceAdapters = std::span<const lora::AdapterVersion* const>;  // [B]; nullptr: the base

// Throw ShapeError.
void check_batch(const TrainBatch& batch);
void check_adapters(SequenceAdapters adapters, const TrainBatch& batch, const Weights& weights);
void check_lanes(std::span<const lora::GradientRows> lanes, int64_t count);

int64_t count_blocks(const TrainBatch& batch);  // of keys and values
int64_t shared_rows(const TrainBatch& batch, size_t sequence);

// The rows that a pass computes: all of a batch but those that a sequence shares with one before it.
struct ComputedRows {
  std::vector<int32_t> tokens;
  std::vector<int64_t> before = {0};  // [T + 1] how many of them are ahead of each row of the batch

  explicit ComputedRows(const TrainBatch& batch);
};
std::vector<int32_t> computed_rows(std::span<const int32_t> rows, std::span<const int64_t> before);
std::vector<lora::GradientRows> computed_lanes(std::span<const lora::GradientRows> lanes,
                                               std::span<const int64_t> before);

// The layout that all sequences share, or nullptr.
const lora::AdapterLayout* only_layout(SequenceAdapters adapters);

// Whole sequences over the KV memory of one layer; shared rows have one place in it. Unless each layer keeps its own
// (keeps_activations) every layer uses it in turn: backward stores keys and values anew.
struct PackedRows {
  std::vector<void*> blocks;
  std::vector<Segment> segments;

  // kv [blocks, elements of a block]
  PackedRows(const TrainBatch& batch, SequenceAdapters adapters, Tensor kv);
};

// Where the gradients of each run of rows with one adapter go. A lane's rows lie in one run (ShapeError), and its chain
// goes on from run to run in their order.
std::vector<kernels::GradientPlan> plan_by_adapter(std::span<const lora::AdapterRows> runs,
                                                   std::span<const lora::GradientRows> lanes, Arena& arena,
                                                   Stream& stream);

}  // namespace lockstep::model
