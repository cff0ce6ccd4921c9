#include "kernels/attention.h"

#include <algorithm>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/cpu/attention_work.h"
#include "kernels/cuda/ops.h"
#include "kernels/key_spans.h"
#include "kernels/lora_checks.h"
#include "kernels/pack.h"
#include "kernels/rmsnorm.h"

namespace lockstep::kernels {
namespace {

void require_shape(const AttentionShape& shape, const char* op) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0 || shape.head_dim < 1 ||
      shape.window < 0)
    throw ShapeError({.what = "impossible attention shape",
                      .where = op,
                      .got = std::to_string(shape.heads) + " heads, " + std::to_string(shape.kv_heads) +
                             " kv heads, head_dim " + std::to_string(shape.head_dim) + ", window " +
                             std::to_string(shape.window),
                      .wanted = "heads a multiple of kv heads, head_dim at least 1, window at least 0"});
}

void require_sequences(std::span<const AttentionSequence> sequences, int64_t rows, const char* op) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const auto where = [&] { return std::string(op) + ": sequence " + std::to_string(i); };
    if (s.row_begin < 0 || s.rows < 0 || s.row_begin + s.rows > rows || s.first_position < 0)
      throw ShapeError({.what = "sequence outside the rows",
                        .where = where(),
                        .got = "rows " + std::to_string(s.row_begin) + " .. " + std::to_string(s.row_begin + s.rows) +
                               " at position " + std::to_string(s.first_position),
                        .wanted = "within " + std::to_string(rows) + " rows"});
    const int64_t blocks = (s.first_position + s.rows + kKvBlock - 1) / kKvBlock;
    if (s.rows > 0 && static_cast<int64_t>(s.blocks.size()) < blocks)
      throw ShapeError({.what = "sequence has too few blocks of keys and values",
                        .where = where(),
                        .got = std::to_string(s.blocks.size()),
                        .wanted = std::to_string(blocks)});
  }
}

int64_t rows_of(const ConstTensor& x) {
  return x.rank > 0 ? x.shape[0] : 0;
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
    device.num_tiles = static_cast<int64_t>(tiles.size());
    device.tiles = upload(std::span<const QueryTile>(tiles), arena, stream).data();
  }
  return placed;
}

int64_t span_scratch_floats(const AttentionShape& shape, int64_t num_sequences, int64_t max_positions) {
  return cuda::span_scratch_floats(shape, num_sequences, max_positions);
}

namespace {

Tensor heads_of(const Tensor& x, int64_t begin, int64_t end, int64_t head_dim) {
  Tensor view(x.f32() + begin * head_dim, DType::f32, {x[0], end - begin, head_dim});
  view.row_stride = x.row_stride;
  return view;
}
ConstTensor heads_of(const ConstTensor& x, int64_t begin, int64_t end, int64_t head_dim) {
  ConstTensor view(x.f32() + begin * head_dim, DType::f32, {x[0], end - begin, head_dim});
  view.row_stride = x.row_stride;
  return view;
}

Tensor rstd_of(const Tensor& rstd, int64_t begin, int64_t heads, int64_t rows) {
  return rstd.empty() ? Tensor() : Tensor(rstd.f32() + begin * rows, DType::f32, {heads * rows});
}

void require_heads(const ConstTensor& x, int64_t heads, const AttentionShape& shape, const HeadNorms& norms,
                   std::span<const int32_t> positions, const char* op, const char* argument, const Stream& stream) {
  require_shape(shape, op);
  const int64_t rows = rows_of(x);
  require_tensor(x, activation_dtype(stream.device()), {rows, heads * shape.head_dim}, op, argument);
  if (norms.q_norm.empty() != norms.k_norm.empty())
    throw ShapeError({.what = "norms of q and k come together", .where = op});
  if (!norms.q_norm.empty()) {
    require_f32(norms.q_norm, {shape.head_dim}, op, "q_norm");
    require_f32(norms.k_norm, {shape.head_dim}, op, "k_norm");
  }
  if (static_cast<int64_t>(positions.size()) != rows)
    throw ShapeError({.what = "one position per row",
                      .where = op,
                      .got = std::to_string(positions.size()),
                      .wanted = std::to_string(rows)});
}

void require_heads_forward(const ConstTensor& qk, const ConstTensor& rstd, const ConstTensor& qkv,
                           const HeadNorms& norms, std::span<const int32_t> positions, const AttentionShape& shape,
                           const AttentionRows& rows, bool store, const Stream& stream) {
  constexpr const char* kOp = "heads_forward";
  const int64_t all = shape.heads + shape.kv_heads, count = rows_of(qkv);
  require_heads(qkv, all + shape.kv_heads, shape, norms, positions, kOp, "qkv", stream);
  require_tensor(qk, qkv.dtype, {count, all * shape.head_dim}, kOp, "qk");
  if (!rstd.empty()) require_f32(rstd, {all * count}, kOp, "rstd");
  if (store) require_sequences(rows.sequences, count, kOp);
}

}  // namespace

void heads_forward(Tensor qk, Tensor rstd, ConstTensor qkv, const HeadNorms& norms, const RopeTable& table,
                   std::span<const int32_t> positions, const AttentionShape& shape, const AttentionRows& rows,
                   bool store, Stream& stream) {
  const int64_t heads = shape.heads, all = shape.heads + shape.kv_heads, count = rows_of(qkv), d = shape.head_dim;
  require_heads_forward(qk, rstd, qkv, norms, positions, shape, rows, store, stream);
  if (stream.device() == Device::cuda)
    return cuda::heads_forward(qk, rstd, qkv, norms, table, positions, shape, rows.device, store, stream);
  if (!norms.q_norm.empty()) {
    rmsnorm_forward(heads_of(qk, 0, heads, d), rstd_of(rstd, 0, heads, count), heads_of(qkv, 0, heads, d), norms.q_norm,
                    norms.eps, stream);
    rmsnorm_forward(heads_of(qk, heads, all, d), rstd_of(rstd, heads, shape.kv_heads, count),
                    heads_of(qkv, heads, all, d), norms.k_norm, norms.eps, stream);
  } else if (qk.data != qkv.data) {
    for (int64_t t = 0; t < count; ++t) std::copy_n(qkv.row(t), all * d, qk.row(t));
  }
  rope(qk, all, positions, table, +1, stream);
  if (store) kv_store(qk.cols(heads * d, all * d), qkv.cols(all * d, (all + shape.kv_heads) * d), shape, rows, stream);
}

void heads_forward(Tensor qk, Tensor rstd, Tensor qkv, const PendingDelta& delta, bool keep, const HeadNorms& norms,
                   const RopeTable& table, std::span<const int32_t> positions, const AttentionShape& shape,
                   const AttentionRows& rows, bool store, Stream& stream) {
  if (!delta.empty()) {
    require_heads_forward(qk, rstd, qkv, norms, positions, shape, rows, store, stream);
    require_delta(qkv, delta, "heads_forward", stream);
    if (cuda::heads_forward(qk, rstd, qkv, delta, keep, norms, table, positions, shape, rows.device, store, stream))
      return;
    add_delta(qkv, delta, stream);
  }
  heads_forward(qk, rstd, qkv, norms, table, positions, shape, rows, store, stream);
}

void heads_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const HeadNorms& norms, const RopeTable& table,
                    std::span<const int32_t> positions, const AttentionShape& shape, Stream& stream) {
  constexpr const char* kOp = "heads_backward";
  const int64_t heads = shape.heads, all = shape.heads + shape.kv_heads, count = rows_of(d_qkv), d = shape.head_dim;
  require_heads(d_qkv, all + shape.kv_heads, shape, norms, positions, kOp, "d_qkv", stream);
  if (!norms.q_norm.empty()) {
    require_tensor(qkv, d_qkv.dtype, {count, (all + shape.kv_heads) * d}, kOp, "qkv");
    require_f32(rstd, {all * count}, kOp, "rstd");
  }
  if (stream.device() == Device::cuda)
    return cuda::heads_backward(d_qkv, qkv, rstd, norms, table, positions, shape, stream);
  rope(d_qkv, all, positions, table, -1, stream);
  if (norms.q_norm.empty()) return;
  const auto norm_backward = [&](int64_t begin, int64_t end, const ConstTensor& weight) {
    const Tensor dq = heads_of(d_qkv, begin, end, d);
    rmsnorm_backward(dq, dq, heads_of(qkv, begin, end, d), weight,
                     ConstTensor(rstd.f32() + begin * count, DType::f32, {(end - begin) * count}), false, stream);
  };
  norm_backward(0, heads, norms.q_norm);
  norm_backward(heads, all, norms.k_norm);
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

void heads_attention_forward(Tensor o, Tensor qk, Tensor qkv, const PendingDelta& delta, const HeadNorms& norms,
                             const RopeTable& table, std::span<const int32_t> positions, const AttentionShape& shape,
                             const AttentionRows& rows, Stream& stream) {
  constexpr const char* kOp = "heads_attention_forward";
  const int64_t count = rows_of(qkv), width = shape.heads * shape.head_dim;
  if (!delta.empty()) {
    require_heads_forward(qk, {}, qkv, norms, positions, shape, rows, true, stream);
    require_delta(qkv, delta, kOp, stream);
    if (cuda::heads_forward(qk, {}, qkv, delta, false, norms, table, positions, shape, rows.device, true, stream))
      return attention_forward(o, {}, qk.cols(0, width), shape, rows, stream);
    add_delta(qkv, delta, stream);
  }
  if (stream.device() == Device::cuda) {
    require_heads(qkv, shape.heads + 2 * shape.kv_heads, shape, norms, positions, kOp, "qkv", stream);
    require_tensor(o, qkv.dtype, {count, width}, kOp, "o");
    require_sequences(rows.sequences, count, kOp);
    if (cuda::heads_attention_forward(o, qk, qkv, norms, table, positions, shape, rows.device, stream)) return;
  }
  heads_forward(qk, {}, qkv, norms, table, positions, shape, rows, true, stream);
  attention_forward(o, {}, qk.cols(0, width), shape, rows, stream);
}

void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, Tensor scratch, const AttentionShape& shape, const AttentionRows& rows,
                        Stream& stream) {
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
  for (const AttentionSequence& sequence : rows.sequences)
    if (sequence.first_position != 0)
      throw ShapeError({.what = "gradients need whole sequences",
                        .where = kOp,
                        .got = "first position " + std::to_string(sequence.first_position),
                        .wanted = "0"});
  if (stream.device() == Device::cuda) {
    require_f32(scratch, {count, shape.heads}, kOp, "scratch");
    return cuda::attention_backward(dq, dk, dv, d_o, q, o, stats, scratch, shape, rows.device, stream);
  }
  cpu::attention_backward({dq, dk, dv, d_o, q, o, stats}, shape, rows.sequences, stream);
}

}  // namespace lockstep::kernels
