// What adapters do column by column, and to whole weights. Plain kernels: they run once a layer or once a step, beside
// matmuls that cost far more.
#include <mma.h>

#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/output_columns.h"
#include "kernels/cuda/plain_weight.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ float value_of(bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float value_of(float x) {
  return x;
}
__device__ __forceinline__ void put(bf16* to, float x) {
  *to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void put(float* to, float x) {
  *to = x;
}

template <class T>
struct View {
  T* data;
  int64_t stride;
};
template <class T>
View<T> view(const ConstTensor& t) {
  return {const_cast<T*>(data_of<T>(t)), t.row_stride};
}

unsigned blocks_of(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

// ---- y = x * factor + bias + residual ----

template <class T>
__global__ void __launch_bounds__(kThreads) columns_kernel(View<T> y, View<T> x, const float* factor, const float* bias,
                                                           View<T> residual, int64_t rows, int64_t columns) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= columns) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    float v = value_of(x.data[t * x.stride + n]);
    if (factor) v = __fmul_rn(v, factor[n]);
    if (bias) v = __fadd_rn(v, bias[n]);
    if (residual.data) v = __fadd_rn(v, value_of(residual.data[t * residual.stride + n]));
    put(&y.data[t * y.stride + n], v);
  }
}

template <class T>
void columns_as(const Tensor& y, const ConstTensor& x, const ConstTensor& factor, const ConstTensor& bias,
                const ConstTensor& residual, Stream& stream) {
  if (y[0] == 0 || y[1] == 0) return;
  const dim3 grid(blocks_of(y[1], kThreads), static_cast<unsigned>(std::min<int64_t>(y[0], 4096)));
  columns_kernel<T><<<grid, kThreads, 0, stream_of(stream)>>>(view<T>(y), view<T>(x), data_of<float>(factor),
                                                              data_of<float>(bias), view<T>(residual), y[0], y[1]);
}

// ---- gradients of magnitudes and biases ----

struct Values {
  View<bf16> y, residual;
  const float *bias, *factor;
};

// One block of rows: partial[block, i] = sum of dy * value, in order of the rows.
__global__ void __launch_bounds__(kThreads)
    column_partial(View<bf16> dy, Values v, const GradientBlock* blocks, int64_t begin, int64_t count, float* partial) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const GradientBlock block = blocks[blockIdx.y];
  const int64_t n = begin + i;
  const float bias = v.bias ? v.bias[n] : 0, factor = v.y.data ? v.factor[n] : 0;
  float sum = 0;
#pragma unroll 8
  for (int64_t t = block.row_begin; t < block.row_begin + block.rows; ++t) {
    const float g = value_of(dy.data[t * dy.stride + n]);
    if (!v.y.data) {
      sum = __fadd_rn(sum, g);
      continue;
    }
    float y = value_of(v.y.data[t * v.y.stride + n]);
    if (v.residual.data) y = __fsub_rn(y, value_of(v.residual.data[t * v.residual.stride + n]));
    y = __fmul_rn(__fsub_rn(y, bias), factor);
    sum = __fadd_rn(sum, __fmul_rn(g, y));
  }
  partial[blockIdx.y * count + i] = sum;
}

// The blocks of a lane, in order.
__global__ void __launch_bounds__(kThreads)
    add_column_blocks(const float* partial, const GradientLane* lanes, int64_t offset, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const GradientLane lane = lanes[blockIdx.y];
  float sum = lane.gradient[offset + i];
  for (int64_t b = lane.first_block; b < lane.first_block + lane.num_blocks; ++b)
    sum = __fadd_rn(sum, partial[b * count + i]);
  lane.gradient[offset + i] = sum;
}

// ---- gradients of weights: g += scale a^T b ----

constexpr int kSide = 64, kStep = 16, kPad = 8;
struct alignas(32) WeightTile {
  bf16 a[kStep][kSide + kPad], b[kStep][kSide + kPad];
  float sums[kSide][kSide + kPad];
};

// Rows of one step, of the columns from `begin` on; what lies outside is 0.
__device__ void load_rows(bf16 (&to)[kStep][kSide + kPad], View<bf16> from, int64_t row, int64_t end, int64_t begin,
                          int64_t columns) {
  for (int e = threadIdx.x; e < kStep * kSide; e += kThreads) {
    const int r = e / kSide, c = e % kSide;
    const bool inside = row + r < end && begin + c < columns;
    to[r][c] = inside ? from.data[(row + r) * from.stride + begin + c] : __float2bfloat16_rn(0.0F);
  }
}

// Four warps, each 32 x 32 of a tile of 64 x 64; one lane a block of the grid.
__global__ void __launch_bounds__(kThreads)
    weight_gradient_kernel(View<bf16> a, View<bf16> b, int64_t m_count, int64_t n_count, const GradientBlock* blocks,
                           const GradientLane* lanes, int64_t offset, float scale) {
  namespace wmma = nvcuda::wmma;
  __shared__ WeightTile tile;
  const GradientLane lane = lanes[blockIdx.z];
  const int64_t m0 = int64_t{blockIdx.x} * kSide, n0 = int64_t{blockIdx.y} * kSide;
  float* const g = lane.gradient + offset;
  for (int e = threadIdx.x; e < kSide * kSide; e += kThreads) {
    const int64_t m = m0 + e / kSide, n = n0 + e % kSide;
    tile.sums[e / kSide][e % kSide] = m < m_count && n < n_count ? g[m * n_count + n] : 0.0F;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, wm = 32 * (warp / 2), wn = 32 * (warp % 2);
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2], acc[2][2];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      wmma::load_matrix_sync(sum[i][j], &tile.sums[wm + 16 * i][wn + 16 * j], kSide + kPad, wmma::mem_row_major);
  for (int32_t index = lane.first_block; index < lane.first_block + lane.num_blocks; ++index) {
    const GradientBlock block = blocks[index];
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) wmma::fill_fragment(acc[i][j], 0.0F);
    const int64_t end = int64_t{block.row_begin} + block.rows;
    for (int64_t row = block.row_begin; row < end; row += kStep) {
      __syncthreads();
      load_rows(tile.a, a, row, end, m0, m_count);
      load_rows(tile.b, b, row, end, n0, n_count);
      __syncthreads();
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::col_major> fa[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> fb[2];
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(fa[i], &tile.a[0][wm + 16 * i], kSide + kPad);
        wmma::load_matrix_sync(fb[i], &tile.b[0][wn + 16 * i], kSide + kPad);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::mma_sync(acc[i][j], fa[i], fb[j], acc[i][j]);
    }
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j)
        for (int e = 0; e < sum[i][j].num_elements; ++e)
          sum[i][j].x[e] = __fadd_rn(sum[i][j].x[e], __fmul_rn(scale, acc[i][j].x[e]));
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      wmma::store_matrix_sync(&tile.sums[wm + 16 * i][wn + 16 * j], sum[i][j], kSide + kPad, wmma::mem_row_major);
  __syncthreads();
  for (int e = threadIdx.x; e < kSide * kSide; e += kThreads) {
    const int64_t m = m0 + e / kSide, n = n0 + e % kSide;
    if (m < m_count && n < n_count) g[m * n_count + n] = tile.sums[e / kSide][e % kSide];
  }
}

// ---- norms of rows ----

constexpr int kMaxNormPairs = 4;
struct NormPairs {
  struct One {
    const bf16 *a, *b;  // [rank, depth], [rank, count]
    int64_t b_stride;
    int rank;
    float scale;
  } pair[kMaxNormPairs];
  int count = 0;
};

// A warp has a row.
__global__ void __launch_bounds__(kThreads)
    row_norms_kernel(float* norm, const bf16* weight, int64_t depth, int64_t count, NormPairs pairs) {
  const int64_t n = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (n >= count) return;
  float sum = 0;
  for (int64_t k = threadIdx.x % 32; k < depth; k += 32) {
    float w = value_of(weight[n * depth + k]);
    for (int p = 0; p < pairs.count; ++p) {
      const NormPairs::One& one = pairs.pair[p];
      float delta = 0;
      for (int r = 0; r < one.rank; ++r)
        delta = __fmaf_rn(value_of(one.b[r * one.b_stride + n]), value_of(one.a[r * depth + k]), delta);
      w = __fmaf_rn(one.scale, delta, w);
    }
    sum = __fmaf_rn(w, w, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) norm[n] = __fsqrt_rn(sum);
}

// ---- rows of an embedding ----

// A thread has a column of a lane, and goes through its rows in order: no two threads write to one place.
__global__ void __launch_bounds__(kThreads)
    embedding_gradient_kernel(View<bf16> dy, const int32_t* ids, int64_t width, const GradientBlock* blocks,
                              const GradientLane* lanes, int64_t offset) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= width) return;
  const GradientLane lane = lanes[blockIdx.y];
  for (int32_t index = lane.first_block; index < lane.first_block + lane.num_blocks; ++index) {
    const GradientBlock block = blocks[index];
    for (int64_t t = block.row_begin; t < block.row_begin + block.rows; ++t) {
      float* const g = lane.gradient + offset + ids[t] * width + column;
      *g = __fadd_rn(*g, value_of(dy.data[t * dy.stride + column]));
    }
  }
}

// ---- logits ----

constexpr int kExpandRows = 8;

__global__ void __launch_bounds__(kThreads)
    expand_f32_kernel(View<float> y, View<bf16> h, const bf16* b, int64_t b_stride, int64_t rows, int64_t out, int rank,
                      float scale) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= out) return;
  for (int64_t row = int64_t{blockIdx.y} * kExpandRows; row < rows; row += int64_t{gridDim.y} * kExpandRows) {
    const int count = static_cast<int>(rows - row < kExpandRows ? rows - row : kExpandRows);
    float sum[kExpandRows] = {};
    for (int r = 0; r < rank; ++r) {
      const float factor = value_of(b[r * b_stride + n]);
#pragma unroll
      for (int i = 0; i < kExpandRows; ++i)
        if (i < count) sum[i] = __fmaf_rn(value_of(h.data[(row + i) * h.stride + r]), factor, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < kExpandRows; ++i)
      if (i < count) {
        float* const to = &y.data[(row + i) * y.stride + n];
        *to = __fmaf_rn(scale, sum[i], *to);
      }
  }
}

}  // namespace

void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream) {
  if (y.dtype == DType::f32)
    columns_as<float>(y, y, factor, bias, residual, stream);
  else
    columns_as<bf16>(y, y, factor, bias, residual, stream);
  check_launch("finish_outputs", {y});
}

void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream) {
  columns_as<bf16>(dz, dy, factor, {}, {}, stream);
  check_launch("scale_columns", {dz, dy});
}

void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream) {
  if (plan.num_blocks == 0 || to.count == 0) return;
  const Values v{.y = view<bf16>(values.y),
                 .residual = view<bf16>(values.residual),
                 .bias = data_of<float>(values.bias),
                 .factor = data_of<float>(values.factor)};
  const unsigned columns = blocks_of(to.count, kThreads);
  column_partial<<<dim3(columns, static_cast<unsigned>(plan.num_blocks)), kThreads, 0, stream_of(stream)>>>(
      view<bf16>(dy), v, plan.blocks, to.begin, to.count, plan.partial);
  add_column_blocks<<<dim3(columns, static_cast<unsigned>(plan.num_lanes)), kThreads, 0, stream_of(stream)>>>(
      plan.partial, plan.lanes, to.offset, to.count);
  check_launch("column_gradient", {dy});
}

void weight_gradient(const GradientPlan& plan, ConstTensor a, ConstTensor b, int64_t offset, float scale,
                     Stream& stream) {
  if (plan.num_blocks == 0 || a[1] == 0 || b[1] == 0) return;
  const dim3 grid(blocks_of(a[1], kSide), blocks_of(b[1], kSide), static_cast<unsigned>(plan.num_lanes));
  weight_gradient_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(view<bf16>(a), view<bf16>(b), a[1], b[1],
                                                                   plan.blocks, plan.lanes, offset, scale);
  check_launch("weight_gradient", {a, b});
}

void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs,
               Stream& stream) {
  if (pairs.size() > kMaxNormPairs)
    throw ShapeError({.what = "too many LoRA pairs for one row of a weight",
                      .where = "row_norms",
                      .got = std::to_string(pairs.size()),
                      .wanted = "at most " + std::to_string(kMaxNormPairs)});
  NormPairs all;
  for (const LoraPair& pair : pairs)
    all.pair[all.count++] = {.a = data_of<bf16>(pair.a),
                             .b = data_of<bf16>(pair.b),
                             .b_stride = pair.b.row_stride,
                             .rank = static_cast<int>(pair.rank()),
                             .scale = pair.scale};
  const auto* const rows = plain_values(weight, "row_norms", stream) + begin * weight.depth;
  row_norms_kernel<<<blocks_of(norm[0], kThreads / 32), kThreads, 0, stream_of(stream)>>>(data_of<float>(norm), rows,
                                                                                          weight.depth, norm[0], all);
  check_launch("row_norms", {norm});
}

void embedding_gradient(const GradientPlan& plan, ConstTensor dy, std::span<const int32_t> ids, int64_t offset,
                        Stream& stream) {
  if (plan.num_blocks == 0 || dy[1] == 0) return;
  const dim3 grid(blocks_of(dy[1], kThreads), static_cast<unsigned>(plan.num_lanes));
  embedding_gradient_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(view<bf16>(dy), ids.data(), dy[1], plan.blocks,
                                                                      plan.lanes, offset);
  check_launch("embedding_gradient", {dy});
}

void expand_f32(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream) {
  if (y[0] == 0) return;
  int64_t column = 0;
  for (const LoraPair& pair : pairs) {
    const int64_t rank = pair.rank(), out = pair.b[1];
    const dim3 grid(blocks_of(out, kThreads),
                    static_cast<unsigned>(std::min<int64_t>((y[0] + kExpandRows - 1) / kExpandRows, 4096)));
    expand_f32_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
        view<float>(y.cols(pair.out_begin, pair.out_begin + out)), view<bf16>(h.cols(column, column + rank)),
        data_of<bf16>(pair.b), pair.b.row_stride, y[0], out, static_cast<int>(rank), pair.scale);
    column += rank;
  }
  check_launch("expand_f32", {y, h});
}

}  // namespace lockstep::kernels::cuda
