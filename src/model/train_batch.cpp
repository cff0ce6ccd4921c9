#include "model/train_batch.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::model {

namespace {

void check_shared(const TrainBatch& batch) {
  if (batch.shared.empty()) return;
  const auto rows = [&](size_t i) { return batch.sequence_begin[i + 1] - batch.sequence_begin[i]; };
  const auto first = [&](std::span<const int32_t> all, size_t i) {
    return all.subspan(static_cast<size_t>(batch.sequence_begin[i]), static_cast<size_t>(batch.shared[i]));
  };
  bool fits = batch.shared.size() + 1 == batch.sequence_begin.size() && batch.shared.front() == 0;
  for (size_t i = 1, leader = 0; fits && i < batch.shared.size(); ++i) {
    const int64_t shared = batch.shared[i];
    if (shared == 0) {
      leader = i;
      continue;
    }
    const auto tokens = batch.tokens.subspan(static_cast<size_t>(batch.sequence_begin[leader]));
    fits = shared > 0 && shared % kernels::kKvBlock == 0 && shared < rows(i) && shared < rows(leader) &&
           (i == leader + 1 || shared == batch.shared[leader + 1]) &&
           std::ranges::equal(first(batch.tokens, i), tokens.first(static_cast<size_t>(shared))) &&
           std::ranges::all_of(first(batch.targets, i), [](int32_t target) { return target < 0; });
  }
  if (fits) return;
  throw ShapeError({.what = "rows of a training batch cannot be shared",
                    .where = "TrainBatch",
                    .wanted = "whole blocks of tokens without targets that an earlier sequence begins with, too"});
}

}  // namespace

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
  check_shared(batch);
}

int64_t shared_rows(const TrainBatch& batch, size_t sequence) {
  return batch.shared.empty() ? 0 : batch.shared[sequence];
}

ComputedRows::ComputedRows(const TrainBatch& batch) {
  for (size_t i = 0; i + 1 < batch.sequence_begin.size(); ++i) {
    const int64_t own = batch.sequence_begin[i] + shared_rows(batch, i);
    for (int64_t row = batch.sequence_begin[i]; row < batch.sequence_begin[i + 1]; ++row) {
      if (row >= own) tokens.push_back(batch.tokens[static_cast<size_t>(row)]);
      before.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
}

std::vector<int32_t> computed_rows(std::span<const int32_t> rows, std::span<const int64_t> before) {
  std::vector<int32_t> computed;
  for (const int32_t row : rows) computed.push_back(static_cast<int32_t>(before[static_cast<size_t>(row)]));
  return computed;
}

std::vector<lora::GradientRows> computed_lanes(std::span<const lora::GradientRows> lanes,
                                               std::span<const int64_t> before) {
  std::vector<lora::GradientRows> computed;
  for (const lora::GradientRows& lane : lanes) {
    const int64_t begin = before[static_cast<size_t>(lane.row_begin)];
    const int64_t end = before[static_cast<size_t>(lane.row_begin + lane.rows)];
    computed.push_back({.row_begin = begin, .rows = end - begin, .gradient = lane.gradient});
  }
  return computed;
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

namespace {

int64_t blocks_of(int64_t rows) {
  return (rows + kernels::kKvBlock - 1) / kernels::kKvBlock;
}

}  // namespace

int64_t count_blocks(const TrainBatch& batch) {
  int64_t blocks = 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    blocks += blocks_of(batch.sequence_begin[i] - batch.sequence_begin[i - 1] - shared_rows(batch, i - 1));
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
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i]) check_adapter(*adapters[i], weights);
    if (shared_rows(batch, i) > 0 && adapters[i] != adapters[i - 1])
      throw ShapeError({.what = "sequences of different adapters cannot share rows",
                        .where = "sequence " + std::to_string(i) + " of the training batch"});
  }
}

PackedRows::PackedRows(const TrainBatch& batch, SequenceAdapters adapters, Tensor kv) {
  int64_t entries = 0, next_row = 0, next_block = 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    entries += blocks_of(batch.sequence_begin[i] - batch.sequence_begin[i - 1]);
  blocks.reserve(static_cast<size_t>(entries));  // spans of it are handed out below
  size_t leader = 0;                             // where the blocks of the sequence begin that others share with
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i) {
    const int64_t rows = batch.sequence_begin[i] - batch.sequence_begin[i - 1], shared = shared_rows(batch, i - 1);
    const size_t begin = blocks.size();
    if (shared == 0) leader = begin;
    for (int64_t b = 0; b < shared / kernels::kKvBlock; ++b) blocks.push_back(blocks[leader + static_cast<size_t>(b)]);
    for (int64_t b = 0; b < blocks_of(rows - shared); ++b, ++next_block)
      blocks.push_back(kv.rows(next_block, next_block + 1).data);
    segments.push_back({.row_begin = next_row,
                        .rows = rows - shared,
                        .first_position = shared,
                        .kv_blocks = {blocks.data() + begin, blocks.size() - begin},
                        .adapter = adapters[i - 1]});
    next_row += rows - shared;
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
