#include "kernels/matmul.h"

#include "kernels/cpu/matrix_ops.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/row_major-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Strips of the transpose of a row-major matrix [columns, depth].
struct TransposedStrips {
  using Load = LoadF32;
  static constexpr bool kRoom = true;
  const float* b;
  size_t stride;
  int64_t columns;

  StripView<float> strip(int64_t index, size_t begin, size_t count, float* room) const {
    const int64_t column = index * kStrip;
    transpose_words(b + column * stride + begin, stride, static_cast<int>(std::min<int64_t>(kStrip, columns - column)),
                    count, room);
    return {room, kStrip};
  }
};

Matmul matmul_of(const Tensor& c, const ConstTensor& a, float scale, bool accumulate) {
  return {.rows = c[0],
          .columns = c[1],
          .depth = a[1],
          .a = a.f32(),
          .a_stride = static_cast<size_t>(a.row_stride),
          .scale = scale,
          .init = accumulate ? c.f32() : nullptr,
          .init_stride = static_cast<size_t>(c.row_stride),
          .c = c.f32(),
          .c_stride = static_cast<size_t>(c.row_stride)};
}

void multiply(const Tensor& c, const ConstTensor& a, const ConstTensor& b, float scale, bool accumulate,
              Stream& stream) {
  const auto stride = static_cast<size_t>(b.row_stride);
  const RowMajorStrips strips{b.f32(), stride, b[1], 1, c[0] > kTileRows && rows_collide(stride, b[0])};
  run_matmul(matmul_of(c, a, scale, accumulate), strips, 1, stream);
}

void multiply_transposed(const Tensor& c, const ConstTensor& a, const ConstTensor& b, float scale, bool accumulate,
                         Stream& stream) {
  constexpr int64_t kTransposeCycles = 12;
  const TransposedStrips strips{b.f32(), static_cast<size_t>(b.row_stride), b[0]};
  run_matmul(matmul_of(c, a, scale, accumulate), strips, kTransposeCycles, stream);
}

// g^T strip by strip, for a g of few columns: vectors run along the rows of g.
void outer_transposed(const Tensor& g, const ConstTensor& a, const ConstTensor& b, float scale, Stream& stream) {
  const int64_t rows = g[0], columns = g[1];
  const auto a_stride = static_cast<size_t>(a.row_stride);
  const Grid grid = choose_grid(
      {.rows = columns, .strips = ceil_div(rows, kStrip), .depth = a[0], .tile_rows = columns, .strip_cycles = 4},
      stream.threads());
  const auto strip_matmul = [&](int64_t width, float* transposed) {
    return Matmul{.rows = columns,
                  .columns = width,
                  .depth = a[0],
                  .a = b.f32(),
                  .a_stride = static_cast<size_t>(b.row_stride),
                  .layout = Layout::columns,
                  .init = transposed,
                  .init_stride = kStrip,
                  .c = transposed,
                  .c_stride = kStrip};
  };
  const Blocking blocking = choose_blocking<RowMajorStrips>(strip_matmul(kStrip, nullptr), columns);
  stream.parallel(grid.strip_parts, [&](int64_t part, int worker) {
    auto* const scratch = static_cast<float*>(stream.scratch(worker, blocking.scratch_bytes()));
    const Span strips = even_part(ceil_div(rows, kStrip), grid.strip_parts, part);
    for (int64_t row = strips.begin * kStrip; row < std::min(rows, strips.end * kStrip); row += kStrip) {
      alignas(64) float transposed[kStrip * kStrip];
      const int64_t width = std::min<int64_t>(kStrip, rows - row);
      for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < columns; ++j) transposed[j * kStrip + i] = g.row(row + i)[j];
      compute_part(strip_matmul(width, transposed), RowMajorStrips{a.f32() + row, a_stride, width, scale}, blocking,
                   {0, columns}, {0, 1}, scratch);
      for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < columns; ++j) g.row(row + i)[j] = transposed[j * kStrip + i];
    }
  });
}

void outer(const Tensor& g, const ConstTensor& a, const ConstTensor& b, float scale, Stream& stream) {
  if (g[0] == 0 || g[1] == 0) return;
  if (g[1] < kStrip && g[0] > g[1]) return outer_transposed(g, a, b, scale, stream);
  const auto g_stride = static_cast<size_t>(g.row_stride), b_stride = static_cast<size_t>(b.row_stride);
  const RowMajorStrips strips{b.f32(), b_stride, b[1], 1, g[0] > kTileRows && rows_collide(b_stride, b[0])};
  run_matmul({.rows = g[0],
              .columns = g[1],
              .depth = a[0],
              .a = a.f32(),
              .a_stride = static_cast<size_t>(a.row_stride),
              .layout = Layout::columns,
              .scale = scale,
              .init = g.f32(),
              .init_stride = g_stride,
              .c = g.f32(),
              .c_stride = g_stride},
             strips, 1, stream);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(multiply);
HWY_EXPORT(multiply_transposed);
HWY_EXPORT(outer);

namespace cpu {

void matmul(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply)(c, a, b, scale, accumulate, stream);
}

void matmul_transposed(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply_transposed)(c, a, b, scale, accumulate, stream);
}

void outer_accumulate(Tensor g, ConstTensor a, ConstTensor b, float scale, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, outer)(g, a, b, scale, stream);
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif
