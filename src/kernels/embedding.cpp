#include "kernels/embedding.h"

#include "core/error.h"
#include "kernels/cpu/output_columns.h"
#include "kernels/cuda/output_columns.h"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"
#include "kernels/output_columns.h"

namespace lockstep::kernels {
namespace {

std::span<const int32_t> ids_of(const EmbeddingSegment& segment, std::span<const int32_t> ids) {
  return ids.subspan(static_cast<size_t>(segment.row_begin), static_cast<size_t>(segment.rows));
}

void require_segment(const EmbeddingSegment& segment, const ConstTensor& rows, std::span<const int32_t> ids,
                     const char* op, const Stream& stream) {
  const int64_t count = rows[0], width = rows[1];
  const bool fits = segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= count &&
                    static_cast<int64_t>(ids.size()) == count;
  if (!fits)
    throw ShapeError({.what = "an adapter's rows are not rows of the batch",
                      .where = op,
                      .got = std::to_string(segment.rows) + " rows from " + std::to_string(segment.row_begin),
                      .wanted = "within " + std::to_string(count) + ", with a token each"});
  const DType dtype = activation_dtype(stream.device());
  if (!segment.weight.empty()) require_tensor(segment.weight, dtype, {segment.weight[0], width}, op, "weight");
  for (const auto pairs : {segment.pairs, segment.subtracted})
    for (const LoraPair& pair : pairs) {
      require_tensor(pair.a, dtype, {pair.a[0], pair.rank()}, op, "a");
      require_tensor(pair.b, dtype, {pair.rank(), width}, op, "b");
    }
}

// h = A^T of the rows' tokens.
Tensor gather_h(const LoraPair& pair, std::span<const int32_t> ids, Arena& arena, Stream& stream) {
  const Tensor h = arena.alloc({static_cast<int64_t>(ids.size()), pair.rank()}, pair.a.dtype);
  gather_rows(h, pair.a, ids, stream);
  return h;
}

// A pair for the ops that read B alone: there A is a matrix of the linear layers' shape.
LoraPair of_b(const LoraPair& pair, const Stream& stream) {
  LoraPair only = pair;
  only.a = stream.device() == Device::cuda ? pair.b : ConstTensor(pair.b.data, pair.b.dtype, {pair.b[1], pair.rank()});
  return only;
}

void embedding_gradient(const GradientPlan& plan, ConstTensor dy, std::span<const int32_t> ids, int64_t offset,
                        Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::embedding_gradient(plan, dy, ids, offset, stream);
  cpu::embedding_gradient(plan, dy, ids, offset, stream);
}

}  // namespace

void embedding_adapters(Tensor y, std::span<const int32_t> ids, const EmbeddingAdapters& adapters, Stream& stream) {
  for (const EmbeddingSegment& segment : adapters.segments) {
    require_segment(segment, y, ids, "embedding_adapters", stream);
    const Tensor rows = y.rows(segment.row_begin, segment.row_begin + segment.rows);
    const std::span<const int32_t> tokens = ids_of(segment, ids);
    if (!segment.weight.empty()) gather_rows(rows, segment.weight, tokens, stream);
    for (const auto pairs : {segment.pairs, segment.subtracted})
      for (const LoraPair& pair : pairs) {
        const Arena::Scope scope(*adapters.arena);
        const LoraPair b = of_b(pair, stream);
        lora_expand(rows, gather_h(pair, tokens, *adapters.arena, stream), {&b, 1}, stream);
      }
  }
}

void embedding_adapters_backward(ConstTensor dy, std::span<const int32_t> ids, const EmbeddingAdapters& adapters,
                                 Stream& stream) {
  for (const EmbeddingSegment& segment : adapters.segments) {
    if (segment.gradients == nullptr) continue;
    require_segment(segment, dy, ids, "embedding_adapters_backward", stream);
    if (segment.weight_gradient >= 0) embedding_gradient(*segment.gradients, dy, ids, segment.weight_gradient, stream);
    for (const LoraPair& pair : segment.pairs) {
      const Arena::Scope scope(*adapters.arena);
      // Gradient plans count the rows of the batch, so these matrices have all of its rows.
      const Tensor h = gather_h(pair, ids, *adapters.arena, stream);
      const Tensor dh = adapters.arena->alloc({dy[0], pair.rank()}, dy.dtype);
      const LoraPair b = of_b(pair, stream);
      lora_expand_backward(dh, dy, {&b, 1}, stream);
      weight_gradient(*segment.gradients, h, dy, pair.b_offset, pair.scale, stream);
      embedding_gradient(*segment.gradients, dh, ids, pair.a_offset, stream);
    }
  }
}

}  // namespace lockstep::kernels
