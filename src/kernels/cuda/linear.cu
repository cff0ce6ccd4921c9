#include <algorithm>
#include <array>

#include "kernels/cuda/linear_choice.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void finish_sums(const float* sums, int64_t rows, int64_t outputs, const __grid_constant__ ProductEnd end) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * outputs;
       i += int64_t{gridDim.x} * blockDim.x)
    store_product(end, i / outputs, i % outputs, sums[i]);
}

// cuBLASLt's products with a bias, a few rows at a time through scratch memory.
void run_with_bias(Library& library, const Product& p, Stream& stream) {
  Product sums = p;
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
    ProductEnd end = p.end;
    end.y = static_cast<std::byte*>(p.end.y) + row * p.end.y_stride * y_size;
    if (end.residual) end.residual = static_cast<const std::byte*>(end.residual) + row * end.residual_stride * y_size;
    finish_sums<<<static_cast<unsigned>(8 * library.multiprocessors), 256, 0, stream_of(stream)>>>(
        static_cast<const float*>(sums.end.y), sums.x.rows, p.outputs, end);
  }
}

void run_product(const Product& p, Stream& stream) {
  if (p.x.rows == 0 || p.outputs == 0) return;
  Library& library = library_of(stream);
  if (p.end.bias)
    run_with_bias(library, p, stream);
  else
    run_linear(library, p, choose_linear(library, p, stream), stream_of(stream));
}

Operand operand_of(const PackedWeight& weight) {
  return operand(static_cast<const bf16*>(weight.panels.data()), weight.depth, weight.rows, weight.depth);
}

Product forward_product(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const ConstTensor& bias,
                        const ConstTensor& residual) {
  return {.x = operand(x),
          .w = operand_of(weight),
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
  run_product(forward_product(y, x, weight, bias, residual), stream);
  check_launch("linear_forward", {y, x, bias, residual});
}

bool linear_shrink_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                           ConstTensor residual, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr int64_t kMostRank = 256;  // of all pairs: beyond it blocks for A delay those of the base
  if (pairs.empty() || pairs.size() >= size_t{kMostTogether} || total_rank(pairs) > kMostRank) return false;
  std::array<Product, kMostTogether> products = {forward_product(y, x, weight, bias, residual)};
  size_t count = 1;
  int64_t column = 0;
  for (const LoraPair& pair : pairs) {
    const Operand a = operand(pair.a);
    if (!a.aligned) return false;
    products[count++] = {.x = products[0].x,
                         .w = a,
                         .outputs = pair.rank(),
                         .end = {.y = data_of<bf16>(h) + column, .y_stride = h.row_stride}};
    column += pair.rank();
  }
  const SmallKernel* const kernel = choose_ring(library_of(stream), products[0], stream);
  if (!kernel) return false;
  kernel->launch_together(std::span(products).first(count), stream_of(stream));
  return true;
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  run_product({.x = operand(dy),
               .w = operand_of(weight),
               .transposed = true,
               .outputs = weight.depth,
               .end = {.y = dx.data,
                       .y_stride = dx.row_stride,
                       .y_f32 = dx.dtype == DType::f32,
                       .residual = accumulate ? dx.data : nullptr,
                       .residual_stride = dx.row_stride}},
              stream);
  check_launch("linear_backward_input", {dx, dy});
}

}  // namespace lockstep::kernels::cuda
