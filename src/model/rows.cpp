#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/transfer.h"
#include "lora/adapter_tiles.h"
#include "model/adapter_extras.h"
#include "model/block.h"
#include "model/tensor_places.h"

namespace lockstep::model {

namespace {

int64_t blocks_of(const Segment& segment) {
  return (segment.first_position + segment.rows + kernels::kKvBlock - 1) / kernels::kKvBlock;
}

void check_segment(const Segment& segment, int64_t index, int64_t row, const ModelSpec& config) {
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
}

void check_tokens(std::span<const int32_t> tokens, const ModelSpec& config) {
  for (size_t t = 0; t < tokens.size(); ++t)
    if (tokens[t] < 0 || tokens[t] >= config.vocab_size)
      throw DataError({.what = "token outside the vocabulary",
                       .where = "position " + std::to_string(t),
                       .got = std::to_string(tokens[t]),
                       .wanted = "0 to " + std::to_string(config.vocab_size - 1),
                       .attempt = "the tokenizer that belongs to this model"});
}

// The rows of several adapters share a launch where the device has one for them, but for those that are many enough to
// fill the GPU alone.
void gather_short_runs(Rows& rows, Arena& arena, Stream& stream) {
  constexpr int64_t kShort = 64;
  if (!kernels::has_lora_tiles(stream.device()) || rows.adapters.rows.size() < 2) return;
  std::vector<lora::AdapterRows> runs, rest;
  for (const lora::AdapterRows& run : rows.adapters.rows)
    if (run.adapter) (run.rows <= kShort && lora::is_plain(*run.adapter->layout) ? runs : rest).push_back(run);
  if (runs.size() < 2) return;
  rows.adapters.tiles = lora::place_tiles(lora::tiles_of(runs), arena, stream);
  rows.adapters.rows = std::move(rest);
}

}  // namespace

kernels::AttentionShape attention_shape(const ModelSpec& config, int64_t layer) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .window = config.window[static_cast<size_t>(layer)],
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
}

kernels::AttentionShape attention_shape(const Rows& rows, int64_t layer) {
  kernels::AttentionShape shape = attention_shape(*rows.config, layer);
  shape.kv_offset = rows.kv_layer_stride * layer;
  return shape;
}

void check_adapter(const lora::AdapterVersion& adapter, const Weights& weights) {
  const int64_t sites = weights.num_sites();
  if (adapter.layout->num_sites() != sites)
    throw ShapeError({.what = "an adapter belongs to another model",
                      .where = lora::policy_text(adapter.policy),
                      .got = std::to_string(adapter.layout->num_sites()) + " linear layers",
                      .wanted = std::to_string(sites)});
  require_extras(adapter);
}

std::vector<lora::AdapterRows> adapter_rows(std::span<const Segment> segments) {
  std::vector<lora::AdapterRows> rows;
  for (const Segment& segment : segments)
    if (!rows.empty() && rows.back().adapter == segment.adapter)
      rows.back().rows += segment.rows;
    else
      rows.push_back({.row_begin = segment.row_begin, .rows = segment.rows, .adapter = segment.adapter});
  return rows;
}

Rows prepare_rows(const RowBatch& batch, const ModelSpec& config, const Weights& weights, RopeCache& rope, Arena& arena,
                  Stream& stream) {
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  int64_t row = 0, num_blocks = 0, last_position = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    check_segment(segment, static_cast<int64_t>(i), row, config);
    if (segment.adapter) check_adapter(*segment.adapter, weights);
    row += segment.rows;
    num_blocks += blocks_of(segment);
    last_position = std::max(last_position, segment.first_position + segment.rows);
  }
  if (row != count)
    throw ShapeError({.what = "segments do not cover the rows in order",
                      .where = "batch",
                      .got = std::to_string(row) + " rows",
                      .wanted = std::to_string(count)});

  check_tokens(batch.tokens, config);

  Rows rows;
  rows.config = &config;
  rows.weights = &weights;
  rows.rope = rope.covering(last_position, stream);
  rows.kv_layer_stride = batch.kv_layer_stride;
  rows.arena = &arena;
  rows.stream = &stream;
  rows.blocks.reserve(static_cast<size_t>(num_blocks));  // spans of it are handed out below
  std::vector<int32_t> positions(static_cast<size_t>(count));
  for (const Segment& segment : batch.segments) {
    for (int64_t r = 0; r < segment.rows; ++r)
      positions[static_cast<size_t>(segment.row_begin + r)] = static_cast<int32_t>(segment.first_position + r);
    const size_t begin = rows.blocks.size(), blocks = static_cast<size_t>(blocks_of(segment));
    rows.blocks.insert(rows.blocks.end(), segment.kv_blocks.begin(),
                       segment.kv_blocks.begin() + static_cast<std::ptrdiff_t>(blocks));
    rows.sequences.push_back({.row_begin = segment.row_begin,
                              .rows = segment.rows,
                              .first_position = segment.first_position,
                              .blocks = std::span(rows.blocks).subspan(begin, blocks)});
  }
  rows.adapters.rows = adapter_rows(batch.segments);
  if (batch.kv_layer_stride > 0) gather_short_runs(rows, arena, stream);  // training needs gradients, and dropout
  rows.tokens = upload(batch.tokens, arena, stream);
  rows.positions = upload(std::span<const int32_t>(positions), arena, stream);
  rows.attention = kernels::place_sequences(rows.sequences, attention_shape(config, 0), arena, stream);
  return rows;
}

namespace {

void check_wanted(std::span<const int32_t> wanted, int64_t count) {
  int64_t least = 0;
  for (const int32_t row : wanted) {
    if (row < least || row >= count)
      throw ShapeError({.what = "wanted rows are not rows of the batch in order",
                        .where = "batch",
                        .got = "row " + std::to_string(row),
                        .wanted = std::to_string(least) + " to " + std::to_string(count - 1)});
    least = row + 1;
  }
}

}  // namespace

std::optional<WantedRows> few_wanted_rows(const RowBatch& batch, const ModelSpec& config, const Weights& weights,
                                          RopeCache& rope, Arena& arena, Stream& stream) {
  if (!batch.wanted) return {};
  const std::span<const int32_t> wanted = *batch.wanted;
  check_wanted(wanted, static_cast<int64_t>(batch.tokens.size()));
  if (2 * wanted.size() > batch.tokens.size()) return {};
  std::vector<int32_t> tokens;
  std::vector<Segment> segments;
  size_t next = 0;
  for (const Segment& segment : batch.segments)
    for (; next < wanted.size() && wanted[next] < segment.row_begin + segment.rows; ++next) {
      // Neighbours stay one segment.
      if (next == 0 || wanted[next] != wanted[next - 1] + 1 || wanted[next] == segment.row_begin) {
        segments.push_back(segment);
        segments.back().row_begin = static_cast<int64_t>(next);
        segments.back().rows = 0;
        segments.back().first_position += wanted[next] - segment.row_begin;
      }
      ++segments.back().rows;
      tokens.push_back(batch.tokens[static_cast<size_t>(wanted[next])]);
    }
  return WantedRows{prepare_rows({.tokens = tokens, .segments = segments, .kv_layer_stride = batch.kv_layer_stride},
                                 config, weights, rope, arena, stream),
                    upload(wanted, arena, stream)};
}

}  // namespace lockstep::model
