#include "kernels/lora_segments.h"

#include "core/transfer.h"
#include "kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

DropoutCounter counter_of(const LoraDropout& dropout, const LoraSegment& segment, const LoraPair& pair) {
  const auto begin = static_cast<size_t>(segment.row_begin), count = static_cast<size_t>(segment.rows);
  return {.key = dropout.key,
          .step = dropout.step,
          .module = pair.number,
          .sample = dropout.sample.subspan(begin, count),
          .position = dropout.position.subspan(begin, count)};
}

// Calls f(pairs, counter): once for all pairs, which read x itself; under dropout pair by pair.
template <class F>
void for_pairs_of_one_input(const LoraSegment& segment, const LoraDropout& dropout, const F& f) {
  if (segment.pairs.empty()) return;
  if (dropout.p == 0) return f(segment.pairs, DropoutCounter());
  for (size_t i = 0; i < segment.pairs.size(); ++i)
    f(segment.pairs.subspan(i, 1), counter_of(dropout, segment, segment.pairs[i]));
}

// What the pairs read: x itself, or a copy of it under the mask.
ConstTensor masked(ConstTensor x, float p, const DropoutCounter& counter, Arena& arena, Stream& stream) {
  if (p == 0) return x;
  const Tensor copy = arena.alloc({x[0], x[1]}, x.dtype);
  dropout(copy, x, p, counter, false, stream);
  return copy;
}

}  // namespace

bool is_one_adapter(const LinearAdapters& adapters, int64_t rows) {
  return adapters.tiles.num_tiles == 0 && adapters.segments.size() == 1 && adapters.segments[0].rows == rows &&
         adapters.dropout.p == 0;
}

void add_segments(Tensor y, ConstTensor x, const LinearAdapters& adapters, Stream& stream) {
  const float p = adapters.dropout.p;
  for (const LoraSegment& segment : adapters.segments) {
    const int64_t begin = segment.row_begin, end = begin + segment.rows;
    for_pairs_of_one_input(segment, adapters.dropout, [&](std::span<const LoraPair> pairs, const auto& counter) {
      const Arena::Scope scope(*adapters.arena);
      const ConstTensor input = masked(x.rows(begin, end), p, counter, *adapters.arena, stream);
      const Tensor h = adapters.arena->alloc({segment.rows, total_rank(pairs)}, x.dtype);
      lora_shrink(h, input, pairs, stream);
      lora_expand(y.rows(begin, end), h, pairs, stream);
    });
  }
}

void add_segments_backward(Tensor dx, ConstTensor dy, ConstTensor x, const LinearAdapters& adapters, Stream& stream) {
  if (adapters.segments.empty()) return;  // and there need not be an arena
  const float p = adapters.dropout.p;
  Arena& arena = *adapters.arena;
  for (const LoraSegment& segment : adapters.segments) {
    const int64_t begin = segment.row_begin, end = begin + segment.rows;
    for_pairs_of_one_input(segment, adapters.dropout, [&](std::span<const LoraPair> pairs, const auto& counter) {
      const Arena::Scope scope(arena);
      // Gradient plans count the rows of the call, so these matrices have all of its rows.
      Tensor input;
      if (p != 0) {
        input = arena.alloc({x[0], x[1]}, x.dtype);
        dropout(input.rows(begin, end), x.rows(begin, end), p, counter, false, stream);
      }
      const ConstTensor read = p == 0 ? x : ConstTensor(input);
      const int64_t rank = total_rank(pairs);
      const Tensor h = arena.alloc({x[0], rank}, x.dtype), dh = arena.alloc({x[0], rank}, x.dtype);
      lora_shrink(h.rows(begin, end), read.rows(begin, end), pairs, stream);
      lora_expand_backward(dh.rows(begin, end), dy.rows(begin, end), pairs, stream);
      lora_gradient(*segment.gradients, read, h, dh, dy, pairs, stream);
      if (dx.empty()) return;
      if (p == 0) return lora_shrink_backward(dx.rows(begin, end), dh.rows(begin, end), pairs, stream);
      const Tensor d_input = arena.alloc({segment.rows, x[1]}, x.dtype);
      zero(d_input.data, static_cast<size_t>(d_input.elements() * dtype_bytes(d_input.dtype)), stream);
      lora_shrink_backward(d_input, dh.rows(begin, end), pairs, stream);
      dropout(dx.rows(begin, end), d_input, p, counter, true, stream);
    });
  }
}

}  // namespace lockstep::kernels
