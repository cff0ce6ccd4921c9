#include "lora/delta.h"

#include <algorithm>
#include <vector>

#include "core/transfer.h"
#include "kernels/swiglu.h"

namespace lockstep::lora {

namespace {

// The pairs of one product as the kernels read them.
std::vector<kernels::LoraPair> pairs_of(const AdapterVersion& adapter, const std::vector<int>& site) {
  std::vector<kernels::LoraPair> pairs;
  pairs.reserve(site.size());
  for (const int index : site) {
    const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
    pairs.push_back({.a = adapter.a(pair),
                     .b = adapter.b(pair),
                     .out_begin = pair.out_begin,
                     .scale = pair.scale,
                     .a_offset = pair.a_offset,
                     .b_offset = pair.b_offset});
  }
  return pairs;
}

kernels::DropoutCounter counter_of(const DeltaDropout& dropout, int pair, int64_t row_begin, int64_t rows) {
  return {.key = dropout.key,
          .step = dropout.step,
          .module = static_cast<uint32_t>(pair),
          .sample = dropout.sample.subspan(static_cast<size_t>(row_begin), static_cast<size_t>(rows)),
          .position = dropout.position.subspan(static_cast<size_t>(row_begin), static_cast<size_t>(rows))};
}

// Calls f(pairs, mask): once for all pairs, which read x itself; under dropout pair by pair, as every pair has a mask
// of its own.
template <class F>
void for_pairs_of_one_input(const AdapterVersion& adapter, const std::vector<int>& site, const DeltaDropout& dropout,
                            int64_t row_begin, int64_t rows, const F& f) {
  const std::vector<kernels::LoraPair> pairs = pairs_of(adapter, site);
  const std::span<const kernels::LoraPair> all(pairs);
  if (dropout.p == 0) return f(all, kernels::DropoutCounter());
  for (size_t i = 0; i < site.size(); ++i) f(all.subspan(i, 1), counter_of(dropout, site[i], row_begin, rows));
}

// What the adapter reads: x itself, or x under a mask.
ConstTensor adapter_input(ConstTensor x, float p, const kernels::DropoutCounter& counter, Arena& arena,
                          Stream& stream) {
  if (p == 0) return x;
  const Tensor masked = arena.alloc({x[0], x[1]}, x.dtype);
  kernels::dropout(masked, x, p, counter, false, stream);
  return masked;
}

// Of AdapterLayout::site_pairs, and of tiles.
int64_t site_number(int64_t layer, Product product) {
  return layer * kProducts + static_cast<int64_t>(product);
}

}  // namespace

int64_t gradient_floats(const AdapterLayout& layout) {
  int64_t most = 0;
  for (const std::vector<int>& site : layout.site_pairs) {
    int64_t floats = 0;
    for (const int index : site) {
      const Pair& pair = layout.pairs[static_cast<size_t>(index)];
      floats += pair.rank * (pair.in + pair.out);
    }
    most = std::max(most, floats);
  }
  return most;
}

namespace {

// All adapters in one call of the workers.
void adapted_linear_on_cpu(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, ConstTensor bias,
                           ConstTensor residual, int64_t layer, Product product, std::span<const AdapterRows> adapters,
                           Arena& arena, Stream& stream) {
  std::vector<std::vector<kernels::LoraPair>> pairs;
  std::vector<kernels::LoraRows> rows;
  int64_t rank = 0;
  for (const AdapterRows& part : adapters) {
    if (part.adapter == nullptr || part.adapter->layout->site(layer, product).empty()) continue;
    pairs.push_back(pairs_of(*part.adapter, part.adapter->layout->site(layer, product)));
    rows.push_back({.row_begin = part.row_begin, .rows = part.rows, .pairs = pairs.back()});
    rank = std::max(rank, kernels::total_rank(pairs.back()));
  }
  if (rows.empty()) return kernels::linear_forward(y, x, weight, bias, residual, stream);
  kernels::adapted_linear_forward(y, arena.alloc({x[0], rank}), x, weight, bias, residual, rows, stream);
}

// The pairs of the one adapter that all rows have, on a GPU and without dropout; else none.
std::vector<kernels::LoraPair> pairs_of_all(int64_t rows, int64_t layer, Product product, const AdapterBatch& adapters,
                                            const DeltaDropout& dropout, const Stream& stream) {
  if (stream.device() != Device::cuda || adapters.tiles.num_tiles > 0 || adapters.rows.size() != 1) return {};
  const AdapterRows& only = adapters.rows.front();
  if (only.adapter == nullptr || only.rows != rows || dropout.p != 0) return {};
  return pairs_of(*only.adapter, only.adapter->layout->site(layer, product));
}

}  // namespace

void adapted_linear_forward(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, int64_t layer, Product product, const AdapterBatch& adapters,
                            const DeltaDropout& dropout, Arena& arena, Stream& stream) {
  const Arena::Scope scope(arena);
  const LinearDelta delta =
      adapted_linear_begin(y, x, weight, bias, residual, layer, product, adapters, dropout, arena, stream);
  kernels::add_delta(y, delta.get(), stream);
}

LinearDelta adapted_linear_begin(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, ConstTensor bias,
                                 ConstTensor residual, int64_t layer, Product product, const AdapterBatch& adapters,
                                 const DeltaDropout& dropout, Arena& arena, Stream& stream) {
  const kernels::LoraTiles& tiles = adapters.tiles;
  if (tiles.num_tiles > 0) {
    const int64_t site = site_number(layer, product);
    const Tensor h = arena.alloc({x[0], tiles.h_columns()}, x.dtype);
    stream.beside([&] { kernels::lora_shrink_tiles(h, x, tiles, site, stream); },
                  [&] { kernels::linear_forward(y, x, weight, bias, residual, stream); });
    LinearDelta rest(tiles, site, h);
    if (std::ranges::none_of(adapters.rows, [](const AdapterRows& r) { return r.adapter != nullptr; })) return rest;
    kernels::add_delta(y, rest.get(), stream);
    delta_forward(y, x, layer, product, adapters.rows, dropout, arena, stream);
    return {};
  }
  if (std::vector<kernels::LoraPair> pairs = pairs_of_all(x[0], layer, product, adapters, dropout, stream);
      !pairs.empty()) {
    const Tensor h = adapters.h.empty() ? arena.alloc({x[0], kernels::total_rank(pairs)}, x.dtype) : adapters.h;
    const bool complete = kernels::adapted_linear_begin(y, h, x, weight, bias, residual, pairs, stream).empty();
    return complete ? LinearDelta() : LinearDelta(std::move(pairs), h);
  }
  const Arena::Scope scope(arena);
  if (stream.device() == Device::cpu && dropout.p == 0) {
    adapted_linear_on_cpu(y, x, weight, bias, residual, layer, product, adapters.rows, arena, stream);
  } else {
    kernels::linear_forward(y, x, weight, bias, residual, stream);
    delta_forward(y, x, layer, product, adapters, dropout, arena, stream);
  }
  return {};
}

void adapted_swiglu_forward(Tensor act, Tensor gate_up, ConstTensor x, const kernels::PackedWeight& weight,
                            ConstTensor bias, int64_t layer, const AdapterBatch& adapters, const DeltaDropout& dropout,
                            Arena& arena, Stream& stream) {
  const Arena::Scope scope(arena);
  const auto pairs = pairs_of_all(x[0], layer, Product::gate_up, adapters, dropout, stream);
  if (!pairs.empty()) {
    const Tensor h = arena.alloc({x[0], kernels::total_rank(pairs)}, x.dtype);
    return kernels::adapted_swiglu_forward(act, gate_up, h, x, weight, bias, pairs, stream);
  }
  const LinearDelta delta =
      adapted_linear_begin(gate_up, x, weight, bias, {}, layer, Product::gate_up, adapters, dropout, arena, stream);
  kernels::swiglu_forward(act, gate_up, delta.get(), false, stream);
}

void delta_forward(Tensor y, ConstTensor x, int64_t layer, Product product, const AdapterBatch& adapters,
                   const DeltaDropout& dropout, Arena& arena, Stream& stream) {
  if (adapters.tiles.num_tiles > 0) {
    const Arena::Scope scope(arena);
    const Tensor h = arena.alloc({x[0], adapters.tiles.h_columns()}, x.dtype);
    kernels::lora_shrink_tiles(h, x, adapters.tiles, site_number(layer, product), stream);
    kernels::lora_expand_tiles(y, h, adapters.tiles, site_number(layer, product), stream);
  }
  for (const AdapterRows& rows : adapters.rows) {
    if (rows.adapter == nullptr) continue;
    const std::vector<int>& site = rows.adapter->layout->site(layer, product);
    if (site.empty()) continue;
    const int64_t end = rows.row_begin + rows.rows;
    for_pairs_of_one_input(*rows.adapter, site, dropout, rows.row_begin, rows.rows, [&](auto pairs, const auto& mask) {
      const Arena::Scope scope(arena);
      const ConstTensor input = adapter_input(x.rows(rows.row_begin, end), dropout.p, mask, arena, stream);
      const Tensor h = arena.alloc({rows.rows, kernels::total_rank(pairs)}, x.dtype);
      kernels::lora_shrink(h, input, pairs, stream);
      kernels::lora_expand(y.rows(rows.row_begin, end), h, pairs, stream);
    });
  }
}

void adapted_linear_backward(Tensor dx, ConstTensor dy, const KeptInput& input, const kernels::PackedWeight& weight,
                             int64_t layer, Product product, const AdapterVersion& adapter,
                             const kernels::GradientPlan& lanes, const DeltaDropout& dropout, Arena& arena,
                             Stream& stream) {
  const Arena::Scope scope(arena);
  const LinearDelta rest = adapted_linear_backward_begin(dx, dy, input, weight, layer, product, adapter, lanes, dropout,
                                                         arena, stream);
  kernels::add_delta(dx, rest.get(), stream);
}

LinearDelta adapted_linear_backward_begin(Tensor dx, ConstTensor dy, const KeptInput& input,
                                          const kernels::PackedWeight& weight, int64_t layer, Product product,
                                          const AdapterVersion& adapter, const kernels::GradientPlan& lanes,
                                          const DeltaDropout& dropout, Arena& arena, Stream& stream) {
  const ConstTensor& x = input.x;
  const std::vector<int>& site = adapter.layout->site(layer, product);
  if (site.empty() || dropout.p != 0) {
    if (!dx.empty()) kernels::linear_backward_input(dx, dy, weight, false, stream);
    delta_backward(dx, dy, x, layer, product, adapter, lanes, dropout, arena, stream);
    return {};
  }
  std::vector<kernels::LoraPair> pairs = pairs_of(adapter, site);
  const int64_t rank = kernels::total_rank(pairs);
  const Tensor dh = arena.alloc({x[0], rank}, x.dtype);
  const Tensor made = input.h.empty() ? arena.alloc({x[0], rank}, x.dtype) : Tensor();
  const ConstTensor h = input.h.empty() ? ConstTensor(made) : input.h;
  stream.beside(
      [&] {
        if (input.h.empty()) kernels::lora_shrink(made, x, pairs, stream);
        kernels::lora_expand_backward(dh, dy, pairs, stream);
        kernels::lora_gradient(lanes, x, h, dh, dy, pairs, stream);
      },
      [&] {
        if (!dx.empty()) kernels::linear_backward_input(dx, dy, weight, false, stream);
      });
  if (dx.empty()) return {};
  if (stream.device() == Device::cuda && pairs.size() == 1) {
    // dx += dh A is to dh and A what y += h B is to h and B.
    return LinearDelta({{.a = pairs[0].b, .b = pairs[0].a}}, dh);
  }
  kernels::lora_shrink_backward(dx, dh, pairs, stream);
  return {};
}

void delta_backward(Tensor dx, ConstTensor dy, ConstTensor x, int64_t layer, Product product,
                    const AdapterVersion& adapter, const kernels::GradientPlan& lanes, const DeltaDropout& dropout,
                    Arena& arena, Stream& stream) {
  const std::vector<int>& site = adapter.layout->site(layer, product);
  if (site.empty()) return;
  const int64_t rows = x[0];
  for_pairs_of_one_input(adapter, site, dropout, 0, rows, [&](auto pairs, const auto& mask) {
    const Arena::Scope scope(arena);
    const ConstTensor input = adapter_input(x, dropout.p, mask, arena, stream);
    const int64_t rank = kernels::total_rank(pairs);
    const Tensor h = arena.alloc({rows, rank}, x.dtype), dh = arena.alloc({rows, rank}, x.dtype);
    kernels::lora_shrink(h, input, pairs, stream);
    kernels::lora_expand_backward(dh, dy, pairs, stream);
    kernels::lora_gradient(lanes, input, h, dh, dy, pairs, stream);
    if (dx.empty()) return;
    if (dropout.p == 0) {
      kernels::lora_shrink_backward(dx, dh, pairs, stream);
    } else {
      const Tensor masked = arena.alloc({rows, x[1]}, x.dtype);
      zero(masked.data, static_cast<size_t>(masked.elements() * dtype_bytes(masked.dtype)), stream);
      kernels::lora_shrink_backward(masked, dh, pairs, stream);
      kernels::dropout(dx, masked, dropout.p, mask, true, stream);
    }
  });
}

}  // namespace lockstep::lora
