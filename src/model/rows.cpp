#include <algorithm>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "model/block.h"

namespace lockstep::model {

namespace {

template <class T>
std::span<T> array(Arena& arena, int64_t count) {
  T* memory = static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(T)));
  std::uninitialized_value_construct_n(memory, count);
  return {memory, static_cast<size_t>(count)};
}

int64_t blocks_of(const Segment& segment) {
  return (segment.first_position + segment.rows + kernels::kKvBlock - 1) / kernels::kKvBlock;
}

void check_segment(const Segment& segment, int64_t index, int64_t row, const ModelConfig& config) {
  const auto where = [&] { return "segment " + std::to_string(index) + " of the batch"; };
  if (segment.row_begin != row || segment.rows < 1 || segment.first_position < 0)
    throw ShapeError({.what = "segments do not cover the rows in order",
                      .where = where(),
                      .got = std::to_string(segment.rows) + " rows from " + std::to_string(segment.row_begin),
                      .wanted = "at least one row from " + std::to_string(row)});
  const int64_t end = segment.first_position + segment.rows;
  if (end > config.max_positions)
    throw DataError({.what = "a sequence is longer than the model allows",
                     .where = where(),
                     .got = std::to_string(end) + " tokens",
                     .wanted = "at most max_position_embeddings = " + std::to_string(config.max_positions)});
  if (static_cast<int64_t>(segment.kv_blocks.size()) < blocks_of(segment))
    throw ShapeError({.what = "a segment has too few KV blocks",
                      .where = where(),
                      .got = std::to_string(segment.kv_blocks.size()),
                      .wanted = std::to_string(blocks_of(segment))});
  if (segment.adapter) check_adapter(*segment.adapter, config);
}

}  // namespace

kernels::AttentionShape attention_shape(const ModelConfig& config, int64_t layer) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .window = config.window[static_cast<size_t>(layer)],
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
}

void check_adapter(const lora::AdapterVersion& adapter, const ModelConfig& config) {
  const int64_t layers = static_cast<int64_t>(adapter.layout->site_pairs.size()) / lora::kProducts;
  if (layers != config.layers)
    throw ShapeError({.what = "an adapter belongs to another model",
                      .where = "adapter version " + std::to_string(adapter.version),
                      .got = std::to_string(layers) + " layers",
                      .wanted = std::to_string(config.layers) + " layers"});
}

void Rows::next_layer() const {
  for (float*& block : kv) block += kv_layer_stride;
}

Rows prepare_rows(const RowBatch& batch, const ModelConfig& config, const Weights& weights, RopeCache& rope,
                  Arena& arena, Stream& stream) {
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  int64_t row = 0, num_blocks = 0, last_position = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    check_segment(segment, static_cast<int64_t>(i), row, config);
    row += segment.rows;
    num_blocks += blocks_of(segment);
    last_position = std::max(last_position, segment.first_position + segment.rows);
  }
  if (row != count)
    throw ShapeError({.what = "segments do not cover the rows in order",
                      .where = "batch",
                      .got = std::to_string(row) + " rows",
                      .wanted = std::to_string(count)});

  Rows rows;
  rows.config = &config;
  rows.weights = &weights;
  rows.rope = rope.covering(last_position);
  rows.positions = array<int32_t>(arena, count);
  rows.sequences = array<kernels::AttentionSequence>(arena, static_cast<int64_t>(batch.segments.size()));
  rows.adapters = array<lora::AdapterRows>(arena, static_cast<int64_t>(batch.segments.size()));
  rows.kv = array<float*>(arena, num_blocks);
  rows.kv_layer_stride = batch.kv_layer_stride;
  rows.arena = &arena;
  rows.stream = &stream;

  size_t block = 0, runs = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    for (int64_t r = 0; r < segment.rows; ++r)
      rows.positions[static_cast<size_t>(segment.row_begin + r)] = static_cast<int32_t>(segment.first_position + r);
    const size_t blocks = static_cast<size_t>(blocks_of(segment));
    std::copy_n(segment.kv_blocks.begin(), blocks, rows.kv.begin() + static_cast<std::ptrdiff_t>(block));
    rows.sequences[i] = {.row_begin = segment.row_begin,
                         .rows = segment.rows,
                         .first_position = segment.first_position,
                         .blocks = rows.kv.subspan(block, blocks)};
    block += blocks;
    if (runs > 0 && rows.adapters[runs - 1].adapter == segment.adapter)
      rows.adapters[runs - 1].rows += segment.rows;
    else
      rows.adapters[runs++] = {.row_begin = segment.row_begin, .rows = segment.rows, .adapter = segment.adapter};
  }
  rows.adapters = rows.adapters.first(runs);
  return rows;
}

}  // namespace lockstep::model
