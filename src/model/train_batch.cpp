#include "model/train_batch.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::model {

void check_batch(const TrainBatch& batch) {
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  const auto& begins = batch.sequence_begin;
  const bool ends_fit = begins.size() >= 2 && begins.front() == 0 && begins.back() == count;
  if (!ends_fit || batch.targets.size() != batch.tokens.size() ||
      std::adjacent_find(begins.begin(), begins.end(), [](int64_t a, int64_t b) { return a >= b; }) != begins.end())
    throw ShapeError({.what = "a training batch does not fit together",
                      .where = "TrainBatch",
                      .got = std::to_string(count) + " tokens, " + std::to_string(batch.targets.size()) + " targets, " +
                             std::to_string(begins.size()) + " sequence bounds",
                      .wanted = "a target per token and bounds that rise from 0 to the number of tokens"});
}

void check_lanes(std::span<const lora::GradientRows> lanes, int64_t count) {
  int64_t end = 0;
  for (const lora::GradientRows& lane : lanes) {
    if (lane.row_begin < end || lane.rows < 0 || lane.row_begin + lane.rows > count || lane.gradient == nullptr)
      throw ShapeError({.what = "gradient lanes are not row ranges in order",
                        .where = "TrainPass::backward",
                        .got = std::to_string(lane.rows) + " rows from " + std::to_string(lane.row_begin),
                        .wanted = "within rows " + std::to_string(end) + " to " + std::to_string(count)});
    end = lane.row_begin + lane.rows;
  }
}

int64_t count_blocks(const TrainBatch& batch) {
  int64_t blocks = 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    blocks += (batch.sequence_begin[i] - batch.sequence_begin[i - 1] + kernels::kKvBlock - 1) / kernels::kKvBlock;
  return blocks;
}

const lora::AdapterLayout* only_layout(SequenceAdapters adapters) {
  const bool one = std::ranges::count(adapters, adapters.front()) == std::ssize(adapters) && adapters.front();
  return one ? adapters.front()->layout.get() : nullptr;
}

void check_adapters(SequenceAdapters adapters, const TrainBatch& batch, const Weights& weights) {
  if (adapters.size() + 1 != batch.sequence_begin.size() ||
      std::ranges::count(adapters, nullptr) == std::ssize(adapters))
    throw ShapeError({.what = "a training batch needs an adapter for its sequences",
                      .where = "TrainPass::forward",
                      .got = std::to_string(adapters.size()),
                      .wanted = "one a sequence, not all of them the base"});
  for (const lora::AdapterVersion* adapter : adapters)
    if (adapter) check_adapter(*adapter, weights);
}

PackedRows::PackedRows(const TrainBatch& batch, SequenceAdapters adapters, Tensor kv) {
  for (int64_t b = 0; b < kv[0]; ++b) blocks.push_back(kv.rows(b, b + 1).data);
  size_t next = 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i) {
    const int64_t begin = batch.sequence_begin[i - 1], rows = batch.sequence_begin[i] - begin;
    const size_t used = static_cast<size_t>((rows + kernels::kKvBlock - 1) / kernels::kKvBlock);
    segments.push_back({.row_begin = begin,
                        .rows = rows,
                        .first_position = 0,
                        .kv_blocks = {blocks.data() + next, used},
                        .adapter = adapters[i - 1]});
    next += used;
  }
}

std::vector<kernels::GradientPlan> plan_by_adapter(std::span<const lora::AdapterRows> runs,
                                                   std::span<const lora::GradientRows> lanes, Arena& arena,
                                                   Stream& stream) {
  std::vector<kernels::GradientPlan> plans;
  size_t begin = 0;
  for (const lora::AdapterRows& run : runs) {
    size_t end = begin;
    const int64_t end_row = run.row_begin + run.rows;
    for (; end < lanes.size() && lanes[end].row_begin < end_row; ++end)
      if (lanes[end].row_begin + lanes[end].rows > end_row || (!run.adapter && lanes[end].rows > 0))
        throw ShapeError({.what = "a gradient lane has rows of several adapters, or of the base",
                          .where = "TrainPass::backward",
                          .got = std::to_string(lanes[end].rows) + " rows from " + std::to_string(lanes[end].row_begin),
                          .wanted = run.adapter ? "at most " + std::to_string(end_row) + " as their end" : "none"});
    const int64_t floats = run.adapter ? lora::gradient_floats(*run.adapter->layout) : 0;
    plans.push_back(kernels::plan_gradients(lanes.subspan(begin, end - begin), floats, arena, stream));
    begin = end;
  }
  return plans;
}

}  // namespace lockstep::model
