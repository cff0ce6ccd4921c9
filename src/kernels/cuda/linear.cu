#include <algorithm>
#include <array>

#include "kernels/cuda/linear_choice.h"
#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_parts.h"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/plain_weight.cuh"

namespace lockstep::kernels::cuda {
namespace {

__global__ void finish_sums(const float* sums, int64_t rows, int64_t outputs, const __grid_constant__ Epilogue end) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * outputs;
       i += int64_t{gridDim.x} * blockDim.x)
    store_output(end, i / outputs, i % outputs, sums[i]);
}

// cuBLASLt's matmuls with a bias: a few rows at a time, through scratch memory.
void run_with_bias(Library& library, const Matmul& p, Stream& stream) {
  Matmul sums = p;
  sums.end = {.y = p.end.y, .y_stride = p.outputs, .y_f32 = true};
  const Choice choice = choose_linear(library, sums, stream);
  if (choice.kernel) return run_linear(library, p, choice, stream_of(stream));
  constexpr int64_t kSumBytes = int64_t{64} << 20;
  const int64_t piece = std::min(p.x.rows, std::max<int64_t>(64, kSumBytes / 4 / p.outputs));
  sums.end.y = scratch_of(stream, static_cast<size_t>(piece * p.outputs) * 4);
  const int64_t y_size = p.end.y_f32 ? 4 : 2;
  for (int64_t row = 0; row < p.x.rows; row += piece) {
    sums.x = operand(p.x.data + row * p.x.stride, p.x.stride, std::min(piece, p.x.rows - row), p.x.cols);
    run_linear(library, sums, choice, stream_of(stream));
    Epilogue end = p.end;
    end.y = static_cast<std::byte*>(p.end.y) + row * p.end.y_stride * y_size;
    if (end.residual) end.residual = static_cast<const std::byte*>(end.residual) + row * end.residual_stride * y_size;
    finish_sums<<<static_cast<unsigned>(8 * library.multiprocessors), 256, 0, stream_of(stream)>>>(
        static_cast<const float*>(sums.end.y), sums.x.rows, p.outputs, end);
  }
}

void run_matmul(const Matmul& p, Stream& stream) {
  if (p.x.rows == 0 || p.outputs == 0) return;
  Library& library = library_of(stream);
  if (p.end.bias)
    run_with_bias(library, p, stream);
  else
    run_linear(library, p, choose_linear(library, p, stream), stream_of(stream));
}

Operand operand_of(const PackedWeight& weight, Stream& stream) {
  return operand(plain_values(weight, "linear", stream), weight.depth, weight.rows, weight.depth);
}

Matmul forward_matmul(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const ConstTensor& bias,
                      const ConstTensor& residual, Stream& stream) {
  return {.x = operand(x),
          .w = operand_of(weight, stream),
          .outputs = weight.rows,
          .end = {.y = y.data,
                  .y_stride = y.row_stride,
                  .y_f32 = y.dtype == DType::f32,
                  .bias = data_of<float>(bias),
                  .residual = residual.data,
                  .residual_stride = residual.row_stride}};
}

}  // namespace

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, ConstTensor residual,
                    Stream& stream) {
  run_matmul(forward_matmul(y, x, weight, bias, residual, stream), stream);
  check_launch("linear_forward", {y, x, bias, residual});
}

namespace {

// The part of the adapter that linear_ring.cu's launch computes; `nothing` if it is not suitable. With an exchange for
// h, that launch also adds h B where it can.
LoraShrinks lora_shrinks(const Tensor& h, std::span<const LoraPair> pairs, const HExchange& exchange) {
  constexpr int64_t kMaxRank = 256;  // sum over all pairs: with more, the blocks that compute h delay those of the base
  if (pairs.size() > kMaxShrinks || total_rank(pairs) > kMaxRank) return {};
  LoraShrinks shrinks{.pairs = pairs, .h = data_of<bf16>(h), .h_stride = h.row_stride, .exchange = exchange};
  for (const LoraPair& pair : pairs) {
    if (!operand(pair.a).aligned) return {};
    if (pair.rank() % 2 != 0 || pair.rank() > kMaxStackedRank || pair.out_begin % 16 != 0 || pair.b[1] % 16 != 0)
      shrinks.exchange = {};
  }
  return shrinks;
}
// Nothing where the call keeps h, which is then stored for a launch of its own that adds h B.
HExchange exchange_of(const Library& library, const LinearCall& call) {
  if (!call.adapters.h.empty()) return {};
  return {.h = static_cast<uint2*>(library.h_exchange.data()),
          .received = static_cast<uint32_t*>(library.counters.data())};
}

RowNorm norm_of(const LinearInput& input) {
  return {.weight = data_of<float>(input.norm_weight), .eps = input.norm_eps};
}
// The choice for a matmul does not depend on its bias.
Choice choice_without_bias(Library& library, Matmul p, Stream& stream) {
  p.end.bias = nullptr;
  return choose_linear(library, p, stream);
}
// Whether a kernel of linear_ring.cu can compute the norm as well.
bool suits_normed(const Matmul& p, const LinearInput& input) {
  return !input.norm_weight.empty() && input.rstd.empty() && suits_ring_norm(p, norm_of(input)) && p.w.aligned &&
         !p.end.residual && !p.end.y_f32;
}

}  // namespace

bool normed_linear_forward(Tensor y, const LinearInput& input, const PackedWeight& weight, ConstTensor bias,
                           bool swiglu, Stream& stream) {
  if (!input.rstd.empty()) return false;
  Library& library = library_of(stream);
  const Matmul p = forward_matmul(y, input.x, weight, bias, {}, stream);
  const RowNorm norm = norm_of(input);
  const RowMatmul row{.matmul = p, .norm = norm, .swiglu = swiglu, .claims = library.tile_claims()};
  if (row_matmul(row, library.multiprocessors, stream_of(stream))) return true;
  if (swiglu) return ring_swiglu(p, norm, nullptr, library.multiprocessors, stream_of(stream));
  if (!suits_normed(p, input)) return false;
  const SmallKernel* const kernel = choice_without_bias(library, p, stream).kernel;
  if (!kernel || !kernel->launch_normed) return false;
  kernel->launch_normed(p, norm, nullptr, stream_of(stream));
  return true;
}

bool normed_adapted_forward(const LinearCall& call, Stream& stream) {
  Library& library = library_of(stream);
  const bool swiglu = !call.act.empty();
  const Matmul p =
      forward_matmul(swiglu ? call.act : call.y, call.input.x, call.weight, call.bias, call.residual, stream);
  if (!suits_normed(p, call.input) || (swiglu && call.keep_y)) return false;
  const LoraShrinks shrinks = lora_shrinks({}, call.adapters.segments[0].pairs, exchange_of(library, call));
  if (shrinks.pairs.empty() || !shrinks.expands()) return false;
  const RowNorm norm = norm_of(call.input);
  if (swiglu) return ring_swiglu(p, norm, &shrinks, library.multiprocessors, stream_of(stream));
  const SmallKernel* const kernel = adapted_ring(library, p, choice_without_bias(library, p, stream), shrinks);
  if (!kernel || !kernel->launch_normed) return false;
  kernel->launch_normed(p, norm, &shrinks, stream_of(stream));
  return true;
}

AdaptedPart adapted_linear_begin(const LinearCall& call, ConstTensor x, Tensor h, Stream& stream) {
  Library& library = library_of(stream);
  LoraShrinks shrinks = lora_shrinks(h, call.adapters.segments[0].pairs, exchange_of(library, call));
  const Matmul p = forward_matmul(call.y, x, call.weight, call.bias, call.residual, stream);
  if (shrinks.pairs.empty() || p.end.y_f32 || !p.x.aligned || !p.w.aligned || p.x.rows == 0 || p.x.rows > kRingRows)
    return AdaptedPart::nothing;
  if (shrinks.expands() && ring_own_h(p, shrinks, library.multiprocessors, stream_of(stream))) return AdaptedPart::all;
  const Choice choice = choice_without_bias(library, p, stream);
  const SmallKernel* const whole = shrinks.expands() ? adapted_ring(library, p, choice, shrinks) : nullptr;
  if (!whole) shrinks.exchange = {};
  const SmallKernel* const kernel = whole ? whole : choice.kernel;
  if (!kernel || !kernel->ring()) return AdaptedPart::nothing;  // cuBLASLt is faster, with a separate launch for h
  kernel->launch_adapted(p, shrinks, stream_of(stream));
  return whole ? AdaptedPart::all : AdaptedPart::h;
}

bool h_fits_beside(int64_t rows) {
  return rows > kRingTileRows && rows <= kRingRows;
}

bool adapted_swiglu_forward(const LinearCall& call, ConstTensor x, Stream& stream) {
  Library& library = library_of(stream);
  const LoraShrinks shrinks = lora_shrinks({}, call.adapters.segments[0].pairs, exchange_of(library, call));
  if (shrinks.pairs.empty() || !shrinks.expands()) return false;
  return ring_swiglu(forward_matmul(call.act, x, call.weight, call.bias, {}, stream), {}, &shrinks,
                     library.multiprocessors, stream_of(stream));
}

bool shrink_by_ring(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream) {
  const LoraShrinks shrinks = lora_shrinks(h, pairs, {});
  return !shrinks.pairs.empty() && ring_h(operand(x), shrinks, stream_of(stream));
}

namespace {

Matmul backward_matmul(const Tensor& dx, const ConstTensor& dy, const PackedWeight& weight, bool accumulate,
                       Stream& stream) {
  return {.x = operand(dy),
          .w = operand_of(weight, stream),
          .transposed = true,
          .outputs = weight.depth,
          .end = {.y = dx.data,
                  .y_stride = dx.row_stride,
                  .y_f32 = dx.dtype == DType::f32,
                  .residual = accumulate ? dx.data : nullptr,
                  .residual_stride = dx.row_stride}};
}

bool by_tiles(const TileLinear& tiled, const std::function<void()>& apart, Stream& stream) {
  if (!tiles_take(tiled) || !tiles_are_faster(library_of(stream), tiled, apart, stream)) return false;
  run_tiles(tiled, stream_of(stream));
  return true;
}

}  // namespace

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  run_matmul(backward_matmul(dx, dy, weight, accumulate, stream), stream);
  check_launch("linear_backward_input", {dx, dy});
}

bool tiled_linear(const LinearCall& call, ConstTensor x, const LoraDelta& delta, const std::function<void()>& apart,
                  Stream& stream) {
  const Matmul p = forward_matmul(call.y, x, call.weight, call.bias, call.residual, stream);
  return by_tiles({.matmul = p, .h = delta.h, .pairs = delta.pairs}, apart, stream);
}

bool tiled_linear_and_h(const LinearCall& call, ConstTensor x, Tensor h, std::span<const LoraPair> pairs,
                        const std::function<void()>& apart, Stream& stream) {
  const Matmul p = forward_matmul(call.y, x, call.weight, call.bias, call.residual, stream);
  return by_tiles({.matmul = p, .pairs = pairs, .computes_h = true, .computed_h = h}, apart, stream);
}

bool tiled_swiglu(const LinearCall& call, ConstTensor x, const LoraDelta& delta, const std::function<void()>& apart,
                  Stream& stream) {
  const Matmul p = forward_matmul(call.y, x, call.weight, call.bias, {}, stream);
  return by_tiles({.matmul = p, .h = delta.h, .pairs = delta.pairs, .act = call.act}, apart, stream);
}

bool tiled_heads(const LinearCall& call, const QkNormRopeCall& heads, ConstTensor x, const LoraDelta& delta,
                 const std::function<void()>& apart, Stream& stream) {
  const Matmul p = forward_matmul(call.y, x, call.weight, call.bias, call.residual, stream);
  return by_tiles({.matmul = p, .h = delta.h, .pairs = delta.pairs, .heads = &heads}, apart, stream);
}

bool tiled_backward(const LinearBackwardCall& call, const LoraDelta& delta, const std::function<void()>& apart,
                    Stream& stream) {
  return by_tiles({.matmul = backward_matmul(call.dx, call.dy, call.weight, call.accumulate, stream),
                   .h = delta.h,
                   .pairs = delta.pairs,
                   .sum = delta.pairs.size() > 1},
                  apart, stream);
}

}  // namespace lockstep::kernels::cuda
