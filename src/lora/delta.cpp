#include "lora/delta.h"

#include "kernels/matmul.h"

namespace lockstep::lora {

namespace {

ConstTensor a_of(const AdapterVersion& adapter, const Pair& pair) {
  return ConstTensor(adapter.a(pair), DType::f32, {pair.in, pair.rank});
}
ConstTensor b_of(const AdapterVersion& adapter, const Pair& pair) {
  return ConstTensor(adapter.b(pair), DType::f32, {pair.rank, pair.out});
}

kernels::DropoutCounter counter_of(const DeltaDropout& dropout, int pair, int64_t row_begin, int64_t rows) {
  return {.key = dropout.key,
          .step = dropout.step,
          .module = static_cast<uint32_t>(pair),
          .sample = dropout.sample.subspan(static_cast<size_t>(row_begin), static_cast<size_t>(rows)),
          .position = dropout.position.subspan(static_cast<size_t>(row_begin), static_cast<size_t>(rows))};
}

// What the adapter reads: x itself, or x under the pair's dropout mask.
ConstTensor adapter_input(ConstTensor x, const Pair& pair, const kernels::DropoutCounter& counter, float p,
                          Arena& arena, Stream& stream) {
  if (p == 0) return x;
  Tensor masked = arena.alloc({x[0], pair.in});
  kernels::dropout(masked, x, p, counter, false, stream);
  return masked;
}

}  // namespace

void delta_forward(Tensor y, ConstTensor x, int64_t layer, Product product, std::span<const AdapterRows> adapters,
                   const DeltaDropout& dropout, Arena& arena, Stream& stream) {
  for (const AdapterRows& rows : adapters) {
    if (rows.adapter == nullptr) continue;
    const AdapterLayout& layout = *rows.adapter->layout;
    const int64_t end = rows.row_begin + rows.rows;
    for (const int index : layout.site(layer, product)) {
      const Pair& pair = layout.pairs[static_cast<size_t>(index)];
      Arena::Scope scope(arena);
      kernels::DropoutCounter counter;
      if (dropout.p != 0) counter = counter_of(dropout, index, rows.row_begin, rows.rows);
      const ConstTensor input = adapter_input(x.rows(rows.row_begin, end), pair, counter, dropout.p, arena, stream);
      Tensor h = arena.alloc({rows.rows, pair.rank});
      kernels::matmul(h, input, a_of(*rows.adapter, pair), 1, false, stream);
      kernels::matmul(y.rows(rows.row_begin, end).cols(pair.out_begin, pair.out_begin + pair.out), h,
                      b_of(*rows.adapter, pair), pair.scale, true, stream);
    }
  }
}

void delta_backward(Tensor dx, ConstTensor dy, ConstTensor x, int64_t layer, Product product,
                    const AdapterVersion& adapter, std::span<const GradientRows> lanes, const DeltaDropout& dropout,
                    Arena& arena, Stream& stream) {
  const int64_t rows = x[0];
  for (const int index : adapter.layout->site(layer, product)) {
    const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
    Arena::Scope scope(arena);
    kernels::DropoutCounter counter;
    if (dropout.p != 0) counter = counter_of(dropout, index, 0, rows);
    const ConstTensor input = adapter_input(x, pair, counter, dropout.p, arena, stream);
    const ConstTensor dy_pair = dy.cols(pair.out_begin, pair.out_begin + pair.out);
    Tensor h = arena.alloc({rows, pair.rank});
    kernels::matmul(h, input, a_of(adapter, pair), 1, false, stream);
    Tensor dh = arena.alloc({rows, pair.rank});
    kernels::matmul_transposed(dh, dy_pair, b_of(adapter, pair), pair.scale, false, stream);

    for (size_t i = 0; i < lanes.size();) {
      // Neighbours of one lane are one stretch of its chain, and one pass over its gradient.
      const int64_t begin = lanes[i].row_begin;
      int64_t end = begin + lanes[i].rows;
      float* gradient = lanes[i].gradient;
      for (++i; i < lanes.size() && lanes[i].gradient == gradient && lanes[i].row_begin == end; ++i)
        end += lanes[i].rows;
      Tensor d_a(gradient + pair.a_offset, DType::f32, {pair.in, pair.rank});
      Tensor d_b(gradient + pair.b_offset, DType::f32, {pair.rank, pair.out});
      kernels::outer_accumulate(d_b, h.rows(begin, end), dy_pair.rows(begin, end), pair.scale, stream);
      kernels::outer_accumulate(d_a, input.rows(begin, end), dh.rows(begin, end), 1, stream);
    }

    if (dx.empty()) continue;
    if (dropout.p == 0) {
      kernels::matmul_transposed(dx, dh, a_of(adapter, pair), 1, true, stream);
    } else {
      Tensor masked = arena.alloc({rows, pair.in});
      kernels::matmul_transposed(masked, dh, a_of(adapter, pair), 1, false, stream);
      kernels::dropout(dx, masked, dropout.p, counter, true, stream);
    }
  }
}

}  // namespace lockstep::lora
