#include "kernels/attention.h"

#include <algorithm>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/attention_checks.h"
#include "kernels/cpu/attention_work.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"
#include "kernels/key_spans.h"

namespace lockstep::kernels {
namespace {

int64_t tiles_of(int64_t rows) {
  return (rows + kQueryTile - 1) / kQueryTile;
}

}  // namespace

AttentionRows place_sequences(std::span<const AttentionSequence> sequences, const AttentionShape& shape, Arena& arena,
                              Stream& stream) {
  AttentionRows placed(sequences);
  if (stream.device() == Device::cpu) return placed;
  std::vector<DeviceSequence> compact;
  std::vector<void*> blocks;
  std::vector<int32_t> sequence_of_row;
  std::vector<QueryTile> tiles;
  bool decode = true;  // prompts and training, which begin at position 0, go by tiles
  for (const AttentionSequence& s : sequences) {
    const auto index = static_cast<int32_t>(compact.size());
    compact.push_back({.row_begin = static_cast<int32_t>(s.row_begin),
                       .rows = static_cast<int32_t>(s.rows),
                       .first_position = static_cast<int32_t>(s.first_position),
                       .block_begin = static_cast<int32_t>(blocks.size())});
    blocks.insert(blocks.end(), s.blocks.begin(), s.blocks.end());
    sequence_of_row.insert(sequence_of_row.end(), static_cast<size_t>(s.rows), index);
    for (int64_t first = 0; first < s.rows; first += kQueryTile) tiles.push_back({index, static_cast<int32_t>(first)});
    placed.device.max_positions = std::max(placed.device.max_positions, s.first_position + s.rows);
    decode = decode && s.rows == 1 && s.first_position > 0;
  }
  // The tiles with most keys go first, so that none of them is left for the end.
  std::stable_sort(tiles.begin(), tiles.end(), [&](const QueryTile& a, const QueryTile& b) {
    return compact[static_cast<size_t>(a.sequence)].first_position + a.first >
           compact[static_cast<size_t>(b.sequence)].first_position + b.first;
  });
  DeviceSequences& device = placed.device;
  device.num_sequences = static_cast<int64_t>(compact.size());
  device.sequences = upload(std::span<const DeviceSequence>(compact), arena, stream).data();
  device.blocks = upload(std::span<void* const>(blocks), arena, stream).data();
  device.sequence_of_row = upload(std::span<const int32_t>(sequence_of_row), arena, stream).data();
  if (decode) {
    const int64_t floats = span_scratch_floats(shape, device.num_sequences, device.max_positions);
    device.span_scratch = arena.alloc({floats}).f32();
    zero(device.span_scratch, static_cast<size_t>(floats) * sizeof(float), stream);
    const KeySpans spans = shared_key_spans(sequences, shape);
    if (!spans.shared.empty()) {
      device.num_shared_spans = static_cast<int64_t>(spans.shared.size());
      device.shared_spans = upload(std::span<const SharedSpan>(spans.shared), arena, stream).data();
      device.first_own_span = upload(std::span<const int32_t>(spans.first_own), arena, stream).data();
    }
  } else {
    std::vector<int32_t> followers;
    for (size_t i = 0; i < sequences.size(); ++i)
      followers.push_back(static_cast<int32_t>(count_followers(sequences, i)));
    if (std::ranges::any_of(followers, [](int32_t count) { return count > 0; }))
      device.followers = upload(std::span<const int32_t>(followers), arena, stream).data();
    std::vector<int64_t> score_tiles;
    for (const AttentionSequence& s : sequences) {
      const int64_t ahead = tiles_of(s.first_position), own = tiles_of(s.rows);
      score_tiles.push_back(device.num_score_tiles);
      device.num_score_tiles += own * ahead + own * (own + 1) / 2;
    }
    device.score_tiles = upload(std::span<const int64_t>(score_tiles), arena, stream).data();
    device.num_tiles = static_cast<int64_t>(tiles.size());
    device.tiles = upload(std::span<const QueryTile>(tiles), arena, stream).data();
  }
  return placed;
}

int64_t span_scratch_floats(const AttentionShape& shape, int64_t num_sequences, int64_t max_positions) {
  return cuda::span_scratch_floats(shape, num_sequences, max_positions);
}

int64_t score_gradient_elements(const AttentionShape& shape, const AttentionRows& rows) {
  return shape.heads * rows.device.num_score_tiles * kQueryTile * kQueryTile;
}

void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, const AttentionRows& rows, Stream& stream) {
  constexpr const char* kOp = "kv_store";
  require_shape(shape, kOp);
  const int64_t count = rows_of(k), width = shape.kv_heads * shape.head_dim;
  require_f32(k, {count, width}, kOp, "k");
  require_f32(v, {count, width}, kOp, "v");
  require_sequences(rows.sequences, count, kOp);
  cpu::kv_store(k, v, shape, rows.sequences, stream);
}

void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape, const AttentionRows& rows,
                       Stream& stream) {
  constexpr const char* kOp = "attention_forward";
  require_shape(shape, kOp);
  const int64_t count = rows_of(q), width = shape.heads * shape.head_dim;
  const DType dtype = activation_dtype(stream.device());
  require_tensor(q, dtype, {count, width}, kOp, "q");
  require_tensor(o, dtype, {count, width}, kOp, "o");
  if (!stats.empty()) require_f32(stats, {count, shape.heads, 2}, kOp, "stats");
  require_sequences(rows.sequences, count, kOp);
  if (stream.device() == Device::cuda) return cuda::attention_forward(o, stats, q, shape, rows.device, stream);
  cpu::attention_forward({o, stats, q}, shape, rows.sequences, stream);
}

void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionScratch& scratch, const AttentionShape& shape,
                        const AttentionRows& rows, Stream& stream) {
  constexpr const char* kOp = "attention_backward";
  require_shape(shape, kOp);
  const int64_t count = rows_of(q), width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  const DType dtype = activation_dtype(stream.device());
  require_tensor(q, dtype, {count, width}, kOp, "q");
  require_tensor(o, dtype, {count, width}, kOp, "o");
  require_tensor(d_o, dtype, {count, width}, kOp, "d_o");
  require_tensor(dq, dtype, {count, width}, kOp, "dq");
  require_tensor(dk, dtype, {count, kv_width}, kOp, "dk");
  require_tensor(dv, dtype, {count, kv_width}, kOp, "dv");
  require_f32(stats, {count, shape.heads, 2}, kOp, "stats");
  require_sequences(rows.sequences, count, kOp);
  require_followers(rows.sequences, kOp);
  if (stream.device() == Device::cuda) {
    require_f32(scratch.dots, {count, shape.heads}, kOp, "dots");
    if (const Tensor& memory = scratch.score_gradients; !memory.empty())
      require_tensor(memory, dtype, {memory.elements()}, kOp, "score gradients");
    return cuda::attention_backward(dq, dk, dv, d_o, q, o, stats, scratch, shape, rows.device, stream);
  }
  cpu::attention_backward({dq, dk, dv, d_o, q, o, stats}, shape, rows.sequences, stream);
}

}  // namespace lockstep::kernels
