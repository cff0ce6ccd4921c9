// A linear call on a GPU: chooses the launches that it consists of.
#include <optional>
#include <vector>

#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/ops.h"
#include "kernels/lora_segments.h"

namespace lockstep::kernels::cuda {
namespace {

// Above this, the adapter's part and the base's matmul each fill the GPU: one after the other on one queue they take
// less time than beside each other on two, which have to be forked and joined.
constexpr int64_t kMaxBesideRows = 2047;

// The input of the matmul.
ConstTensor normalized(const LinearInput& input, Stream& stream) {
  if (input.norm_weight.empty()) return input.x;
  kernels::rmsnorm_forward(input.norm, input.rstd, input.x, input.norm_weight, input.norm_eps, stream);
  return input.norm;
}

// Whether the call has no adapters.
void base_linear(const LinearCall& call, Stream& stream) {
  const bool fits = !call.input.norm_weight.empty() && call.residual.empty();
  if (fits && normed_linear_forward(call.y, call.input, call.weight, call.bias, false, stream)) return;
  linear_forward(call.y, normalized(call.input, stream), call.weight, call.bias, call.residual, stream);
}

// Whether the call has no adapters and y is not wanted.
void base_swiglu(const LinearCall& call, Stream& stream) {
  if (normed_linear_forward(call.act, call.input, call.weight, call.bias, true, stream)) return;
  const LinearInput input{.x = normalized(call.input, stream)};
  const bool is_normed = !call.input.norm_weight.empty();
  if (is_normed && normed_linear_forward(call.act, input, call.weight, call.bias, true, stream)) return;
  const auto apart = [&] {
    linear_forward(call.y, input.x, call.weight, call.bias, {}, stream);
    kernels::swiglu_forward(call.act, call.y, stream);
  };
  if (input.x[0] <= kMaxBesideRows || !tiled_swiglu(call, input.x, {}, apart, stream)) apart();
}

// Launches for rows that all have one adapter.
Tensor h_of(const LinearAdapters& adapters, const ConstTensor& x) {
  if (!adapters.h.empty()) return adapters.h;
  return adapters.arena->alloc({x[0], total_rank(adapters.segments[0].pairs)}, x.dtype);
}

// Many rows, whose h is there, or which have no adapter (rest is empty), where the op that reads y adds h B and need
// not write it back: with h B only where one launch is as fast as the matmul alone.
UnfinishedLinear begin_after_h(const LinearCall& call, ConstTensor x, const LoraDelta& rest, Stream& stream) {
  if (!rest.empty() && tiled_linear(call, x, rest, {}, stream)) return UnfinishedLinear(call.y);
  linear_forward(call.y, x, call.weight, call.bias, call.residual, stream);
  return {call.y, rest};
}

// `writes_y`: if the adapter's part of y is missing at the end, y is written for it, by a pass of its own or by the op
// that reads y.
UnfinishedLinear begin_one_adapter(const LinearCall& call, ConstTensor x, Tensor h, bool writes_y, Stream& stream) {
  const std::span<const LoraPair> pairs = call.adapters.segments[0].pairs;
  const LoraDelta rest{.h = h, .pairs = pairs};
  const auto made = adapted_linear_begin(call, x, h, stream);
  if (made == AdaptedPart::all) return UnfinishedLinear(call.y);
  if (made == AdaptedPart::nothing) {
    const auto base = [&] { linear_forward(call.y, x, call.weight, call.bias, call.residual, stream); };
    const auto make_h = [&] { kernels::lora_shrink(h, x, pairs, stream); };
    if (x[0] > kMaxBesideRows) {
      const auto apart = [&] { base(), add_delta(call.y, rest, stream); };
      const auto after_h = [&] {
        make_h();
        if (!tiled_linear(call, x, rest, apart, stream)) apart();
      };
      if (writes_y && tiled_linear_and_h(call, x, call.adapters.h, pairs, after_h, stream))
        return UnfinishedLinear(call.y);
      make_h();
      if (!writes_y) return begin_after_h(call, x, rest, stream);
      if (tiled_linear(call, x, rest, apart, stream)) return UnfinishedLinear(call.y);
      base();
    } else {
      // h that fits beside the matmul begins before it on the main queue (linear_ring.cu).
      h_fits_beside(x[0]) ? stream.beside(base, make_h) : stream.beside(make_h, base);
    }
  }
  return {call.y, rest};
}

UnfinishedLinear begin_tiles(const LinearCall& call, ConstTensor x, Stream& stream) {
  const LinearAdapters& adapters = call.adapters;
  const LoraTiles& tiles = adapters.tiles;
  const Tensor h = adapters.arena->alloc({x[0], tiles.h_columns()}, x.dtype);
  stream.beside([&] { kernels::lora_shrink_tiles(h, x, tiles, adapters.site, stream); },
                [&] { linear_forward(call.y, x, call.weight, call.bias, call.residual, stream); });
  const LoraDelta rest{.h = h, .tiles = tiles, .site = adapters.site};
  if (adapters.segments.empty()) return {call.y, rest};
  add_delta(call.y, rest, stream);
  add_segments(call.y, x, adapters, stream);
  return UnfinishedLinear(call.y);
}

// `x` is the input of the matmul.
UnfinishedLinear begin_adapted(const LinearCall& call, ConstTensor x, bool writes_y, Stream& stream) {
  const LinearAdapters& adapters = call.adapters;
  if (adapters.tiles.num_tiles > 0) return begin_tiles(call, x, stream);
  if (call.y.dtype != DType::f32 && is_one_adapter(adapters, x[0]))
    return begin_one_adapter(call, x, h_of(adapters, x), writes_y, stream);
  linear_forward(call.y, x, call.weight, call.bias, call.residual, stream);
  add_segments(call.y, x, adapters, stream);
  return UnfinishedLinear(call.y);
}

// Whether one launch has made the whole call, its norm included.
bool adapted_with_norm(const LinearCall& call, Stream& stream) {
  return is_one_adapter(call.adapters, call.input.x[0]) && normed_adapted_forward(call, stream);
}

void adapted_swiglu(const LinearCall& call, Stream& stream) {
  if (adapted_with_norm(call, stream)) return;
  const ConstTensor x = normalized(call.input, stream);
  const LinearAdapters& adapters = call.adapters;
  if (call.keep_y || !is_one_adapter(adapters, x[0]))
    return kernels::swiglu_forward(call.act, begin_adapted(call, x, call.keep_y, stream), call.keep_y, stream);
  const std::span<const LoraPair> pairs = adapters.segments[0].pairs;
  if (adapted_swiglu_forward(call, x, stream)) return;
  const Tensor h = h_of(adapters, x);
  if (x[0] <= kMaxBesideRows)
    return kernels::swiglu_forward(call.act, begin_one_adapter(call, x, h, false, stream), false, stream);
  const LoraDelta delta{.h = h, .pairs = pairs};
  const auto apart = [&] {
    linear_forward(call.y, x, call.weight, call.bias, {}, stream);
    kernels::swiglu_forward(call.act, {call.y, delta}, false, stream);
  };
  kernels::lora_shrink(h, x, pairs, stream);
  if (!tiled_swiglu(call, x, delta, apart, stream)) apart();
}

}  // namespace

UnfinishedLinear begin_linear(const LinearCall& call, Stream& stream) {
  if (!call.adapters.empty()) {
    if (adapted_with_norm(call, stream)) return UnfinishedLinear(call.y);
    return begin_adapted(call, normalized(call.input, stream), call.keep_y, stream);
  }
  base_linear(call, stream);
  return UnfinishedLinear(call.y);
}

void linear(const LinearCall& call, Stream& stream) {
  std::optional<Arena::Scope> scope;
  if (call.adapters.arena) scope.emplace(*call.adapters.arena);
  if (!call.adapters.empty()) {
    if (!call.act.empty()) return adapted_swiglu(call, stream);
    if (adapted_with_norm(call, stream)) return;
    return finish(begin_adapted(call, normalized(call.input, stream), true, stream), stream);
  }
  if (call.act.empty()) return base_linear(call, stream);
  if (!call.keep_y) return base_swiglu(call, stream);
  base_linear(call, stream);
  kernels::swiglu_forward(call.act, call.y, stream);
}

bool qk_norm_rope_forward(const QkNormRopeCall& heads, const LinearCall& call, Stream& stream) {
  const LinearAdapters& adapters = call.adapters;
  const int64_t rows = call.input.x[0];
  if (call.keep_y || rows <= kMaxBesideRows || !(adapters.empty() || is_one_adapter(adapters, rows))) return false;
  const ConstTensor x = normalized(call.input, stream);
  LoraDelta delta;
  if (!adapters.empty()) {
    const Tensor h = h_of(adapters, x);
    delta = {.h = h, .pairs = adapters.segments[0].pairs};
    kernels::lora_shrink(h, x, delta.pairs, stream);
  }
  const auto apart = [&] {
    kernels::qk_norm_rope_forward(heads, begin_after_h(call, x, delta, stream), false, stream);
  };
  if (!tiled_heads(call, heads, x, delta, apart, stream)) apart();
  return true;
}

UnfinishedLinear begin_linear_backward(const LinearBackwardCall& call, Stream& stream) {
  const LinearAdapters& adapters = call.adapters;
  const auto base = [&] {
    if (!call.dx.empty()) linear_backward_input(call.dx, call.dy, call.weight, call.accumulate, stream);
  };
  if (adapters.empty() || !is_one_adapter(adapters, call.dy[0])) {
    base();
    add_segments_backward(call.dx, call.dy, call.x, adapters, stream);
    return UnfinishedLinear(call.dx);
  }
  const ConstTensor& x = call.x;
  const std::span<const LoraPair> pairs = adapters.segments[0].pairs;
  const Tensor dh = adapters.arena->alloc({x[0], total_rank(pairs)}, x.dtype), h = h_of(adapters, x);
  const auto gradients = [&] {
    if (adapters.h.empty()) kernels::lora_shrink(h, x, pairs, stream);
    kernels::lora_backward(*adapters.segments[0].gradients, dh, x, h, call.dy, pairs, stream);
  };
  // dx += dh A has the form of y += h B, with dh in place of h and A in place of B.
  std::vector<LoraPair> transposed;
  for (const LoraPair& pair : pairs) transposed.push_back({.a = pair.b, .b = pair.a});
  const LoraDelta rest{.h = dh, .pairs = transposed};
  if (x[0] > kMaxBesideRows) {
    gradients();
    const auto apart = [&] {
      base();
      pairs.size() == 1 ? add_delta(call.dx, rest, stream) : kernels::lora_shrink_backward(call.dx, dh, pairs, stream);
    };
    if (!call.dx.empty() && tiled_backward(call, rest, apart, stream)) return UnfinishedLinear(call.dx);
    base();
  } else {
    stream.beside(gradients, base);
  }
  if (call.dx.empty()) return UnfinishedLinear(call.dx);
  if (pairs.size() == 1) return {call.dx, rest};
  kernels::lora_shrink_backward(call.dx, dh, pairs, stream);
  return UnfinishedLinear(call.dx);
}

}  // namespace lockstep::kernels::cuda
