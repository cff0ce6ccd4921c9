#include "kernels/attention.h"

#include "core/error.h"
#include "kernels/cpu/attention_work.h"

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

void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
              Stream& stream) {
  constexpr const char* kOp = "kv_store";
  require_shape(shape, kOp);
  const int64_t rows = rows_of(k), width = shape.kv_heads * shape.head_dim;
  require_f32(k, {rows, width}, kOp, "k");
  require_f32(v, {rows, width}, kOp, "v");
  require_sequences(sequences, rows, kOp);
  cpu::kv_store(k, v, shape, sequences, stream);
}

void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                       std::span<const AttentionSequence> sequences, Stream& stream) {
  constexpr const char* kOp = "attention_forward";
  require_shape(shape, kOp);
  const int64_t rows = rows_of(q), width = shape.heads * shape.head_dim;
  require_f32(q, {rows, width}, kOp, "q");
  require_f32(o, {rows, width}, kOp, "o");
  if (!stats.empty()) require_f32(stats, {rows, shape.heads, 2}, kOp, "stats");
  require_sequences(sequences, rows, kOp);
  cpu::attention_forward({o, stats, q}, shape, sequences, stream);
}

void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                        Stream& stream) {
  constexpr const char* kOp = "attention_backward";
  require_shape(shape, kOp);
  const int64_t rows = rows_of(q), width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  require_f32(q, {rows, width}, kOp, "q");
  require_f32(o, {rows, width}, kOp, "o");
  require_f32(d_o, {rows, width}, kOp, "d_o");
  require_f32(dq, {rows, width}, kOp, "dq");
  require_f32(dk, {rows, kv_width}, kOp, "dk");
  require_f32(dv, {rows, kv_width}, kOp, "dv");
  require_f32(stats, {rows, shape.heads, 2}, kOp, "stats");
  require_sequences(sequences, rows, kOp);
  for (const AttentionSequence& sequence : sequences)
    if (sequence.first_position != 0)
      throw ShapeError({.what = "gradients need whole sequences",
                        .where = kOp,
                        .got = "first position " + std::to_string(sequence.first_position),
                        .wanted = "0"});
  cpu::attention_backward({dq, dk, dv, d_o, q, o, stats}, shape, sequences, stream);
}

}  // namespace lockstep::kernels
