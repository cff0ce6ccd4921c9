#include "rollout/local/decode_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace lockstep::rollout {

namespace {

// The sizes for which graphs are recorded: few, but close enough that padding is cheap. Powers of two up to 16, then
// multiples of an eighth of the next power of two.
int64_t round_rows(int64_t rows) {
  if (rows <= 16) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t step = std::max<int64_t>(8, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) / 8);
  return (rows + step - 1) / step * step;
}

// The number of shared spans, rounded up to a power of two; entries of no sequence pad the list.
size_t round_shared_spans(size_t count) {
  return count == 0 ? 0 : std::max<size_t>(16, std::bit_ceil(count));
}

template <class T>
PlacedArray<T> append(std::vector<std::byte>& memory, std::span<const T> values) {
  constexpr size_t kAlignment = 256;
  const size_t offset = (memory.size() + kAlignment - 1) / kAlignment * kAlignment;
  memory.resize(offset + values.size_bytes());
  if (!values.empty()) std::memcpy(memory.data() + offset, values.data(), values.size_bytes());
  return {offset};
}
template <class T>
PlacedArray<T> append(std::vector<std::byte>& memory, const std::vector<T>& values) {
  return append(memory, std::span<const T>(values));
}
PlacedArray<int32_t> append(std::vector<std::byte>& memory, const int32_t& value) {
  return append(memory, std::span<const int32_t>(&value, 1));
}

}  // namespace

DecodeShape DecodeShape::rounded_up(int64_t rows, int64_t positions) {
  const int64_t spans = (positions + kernels::kKeySpan - 1) / kernels::kKeySpan;
  return {.rows = round_rows(rows), .spans = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(spans)))};
}

DecodeBatch::DecodeBatch(std::span<const DecodeInput> inputs, const DecodeShape& shape,
                         const kernels::AttentionShape& attention, void* spare_block)
    : num_active(static_cast<int32_t>(inputs.size())) {
  const auto count = static_cast<size_t>(shape.rows), blocks_each = static_cast<size_t>(shape.blocks_per_row());
  tokens.resize(count);
  positions.resize(count, 1);
  sequence_of_row.resize(count);
  std::iota(sequence_of_row.begin(), sequence_of_row.end(), 0);
  sequences.resize(count);
  samples.resize(count);
  blocks.resize(count * blocks_each, spare_block);
  std::vector<kernels::AttentionSequence> running;
  for (size_t i = 0; i < count; ++i) {
    sequences[i] = {.row_begin = static_cast<int32_t>(i),
                    .rows = 1,
                    .first_position = 1,
                    .block_begin = static_cast<int32_t>(i * blocks_each)};
    if (i >= inputs.size()) continue;
    tokens[i] = inputs[i].token;
    positions[i] = sequences[i].first_position = inputs[i].position;
    samples[i] = inputs[i].sample;
    running.push_back({.rows = 1, .first_position = inputs[i].position, .blocks = inputs[i].blocks});
    // A sequence may hold blocks beyond these steps: those acquired before another sequence found none.
    const size_t used = std::min(inputs[i].blocks.size(), blocks_each);
    std::copy_n(inputs[i].blocks.begin(), used, blocks.begin() + static_cast<std::ptrdiff_t>(i * blocks_each));
  }
  kernels::KeySpans key_spans = kernels::shared_key_spans(running, attention);
  shared_spans = std::move(key_spans.shared);
  shared_spans.resize(round_shared_spans(shared_spans.size()));
  first_own_span = std::move(key_spans.first_own);
  first_own_span.resize(count);
}

PlacedBatch place_batch(const DecodeBatch& batch, const BatchAdapters& adapters, std::vector<std::byte>& memory) {
  memory.clear();
  // Braces, so that the parts are evaluated, and so placed, in this order.
  return {.step = append(memory, batch.step),
          .num_active = append(memory, batch.num_active),
          .tokens = append(memory, batch.tokens),
          .positions = append(memory, batch.positions),
          .sequences = append(memory, batch.sequences),
          .samples = append(memory, batch.samples),
          .sequence_of_row = append(memory, batch.sequence_of_row),
          .shared_spans = append(memory, batch.shared_spans),
          .first_own_span = append(memory, batch.first_own_span),
          .tiles = append(memory, adapters.tiles.tiles),
          .sites = append(memory, adapters.tiles.sites),
          .rank_rows = append(memory, adapters.rank_rows),
          .blocks = append(memory, batch.blocks)};
}

}  // namespace lockstep::rollout
