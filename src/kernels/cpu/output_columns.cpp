// Plain loops that compilers turn into vectors: each output is a chain of its own, so that the width of a vector
// changes no bit.
#include "kernels/cpu/output_columns.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/matrix_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/split.h"

namespace lockstep::kernels::cpu {
namespace {

// Columns that a task goes through row by row: their gradients stay in the first cache, and rows are read in whole
// cache lines.
constexpr int64_t kMaxColumns = 512, kMinColumns = 64;

template <class F>
void for_column_blocks(int64_t columns, int64_t rows, Stream& stream, const F& f) {
  const int64_t share = ceil_div(ceil_div(columns, stream.threads()), kMinColumns) * kMinColumns;
  const int64_t width = std::clamp(share, kMinColumns, kMaxColumns), blocks = ceil_div(columns, width);
  const auto run = [&](int64_t block, int) { f(block * width, std::min(columns, (block + 1) * width)); };
  if (columns * rows > kElementsPerTask) return stream.parallel(blocks, run);
  for (int64_t block = 0; block < blocks; ++block) run(block, 0);
}

void add_row(float* g, const float* dy, int64_t row, int64_t column, int64_t count, const ColumnValues& v) {
  if (v.y.empty()) {
    for (int64_t i = 0; i < count; ++i) g[i] += dy[i];
    return;
  }
  const float* const y = v.y.row(row) + column;
  const float* const k = v.factor.f32() + column;
  float values[kMaxColumns];
  std::copy_n(y, count, values);
  if (!v.residual.empty()) {
    const float* const residual = v.residual.row(row) + column;
    for (int64_t i = 0; i < count; ++i) values[i] -= residual[i];
  }
  if (!v.bias.empty()) {
    const float* const bias = v.bias.f32() + column;
    for (int64_t i = 0; i < count; ++i) values[i] -= bias[i];
  }
  for (int64_t i = 0; i < count; ++i) g[i] += dy[i] * (values[i] * k[i]);
}

// sums[i] = |row i of the panel|^2, with `b` [ranks][kPanel] of the pairs' columns here, scaled.
void panel_squares(double* sums, const PackedWeight& weight, int64_t panel, std::span<const LoraPair> pairs,
                   const float* b) {
  constexpr int64_t kBlock = 64;
  float values[kBlock * kPanel];
  std::fill_n(sums, kPanel, 0.0);
  for (int64_t begin = 0; begin < weight.depth; begin += kBlock) {
    const int64_t end = std::min(weight.depth, begin + kBlock);
    widen_panel(values, weight, panel, begin, end);
    float block[kPanel] = {};
    for (int64_t k = begin; k < end; ++k) {
      float* const w = values + (k - begin) * kPanel;
      const float* of_rank = b;
      for (const LoraPair& pair : pairs)
        for (int64_t r = 0; r < pair.rank(); ++r, of_rank += kPanel) {
          const float a = pair.a.row(k)[r];
          for (int64_t i = 0; i < kPanel; ++i) w[i] += a * of_rank[i];
        }
      for (int64_t i = 0; i < kPanel; ++i) block[i] += w[i] * w[i];
    }
    for (int64_t i = 0; i < kPanel; ++i) sums[i] += static_cast<double>(block[i]);
  }
}

}  // namespace

void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs,
               Stream& stream) {
  const int64_t end = begin + norm[0], first = begin / kPanel;
  const auto b_bytes = static_cast<size_t>(total_rank(pairs) * kPanel) * sizeof(float);
  stream.parallel(ceil_div(end, kPanel) - first, [&](int64_t index, int worker) {
    const int64_t row = (first + index) * kPanel;
    auto* const b = static_cast<float*>(stream.scratch(worker, b_bytes));
    float* to = b;
    for (const LoraPair& pair : pairs)
      for (int64_t r = 0; r < pair.rank(); ++r, to += kPanel)
        for (int64_t i = 0; i < kPanel; ++i)
          to[i] = row + i >= begin && row + i < end ? pair.scale * pair.b.row(r)[row + i - begin] : 0.0F;
    double sums[kPanel];
    panel_squares(sums, weight, first + index, pairs, b);
    for (int64_t i = std::max<int64_t>(0, begin - row); i < std::min(kPanel, end - row); ++i)
      norm.f32()[row + i - begin] = static_cast<float>(std::sqrt(sums[i]));
  });
}

void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream) {
  const int64_t columns = y[1];
  const float* const factors = factor.empty() ? nullptr : factor.f32();
  const float* const biases = bias.empty() ? nullptr : bias.f32();
  split_rows(stream, y[0], columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = y.row(r);
      if (factors != nullptr)
        for (int64_t n = 0; n < columns; ++n) row[n] *= factors[n];
      if (biases != nullptr)
        for (int64_t n = 0; n < columns; ++n) row[n] += biases[n];
      if (residual.empty()) continue;
      const float* const added = residual.row(r);
      for (int64_t n = 0; n < columns; ++n) row[n] += added[n];
    }
  });
}

void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream) {
  const int64_t columns = dy[1];
  const float* const factors = factor.f32();
  split_rows(stream, dy[0], columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const to = dz.row(r);
      const float* const from = dy.row(r);
      for (int64_t n = 0; n < columns; ++n) to[n] = from[n] * factors[n];
    }
  });
}

void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream) {
  for_column_blocks(to.count, dy[0], stream, [&](int64_t begin, int64_t end) {
    for (const GradientRows& rows : plan.rows)
      for (int64_t t = rows.row_begin; t < rows.row_begin + rows.rows; ++t)
        add_row(rows.gradient + to.offset + begin, dy.row(t) + to.begin + begin, t, to.begin + begin, end - begin,
                values);
  });
}

void embedding_gradient(const GradientPlan& plan, ConstTensor dy, std::span<const int32_t> ids, int64_t offset,
                        Stream& stream) {
  const int64_t width = dy[1];
  for_column_blocks(width, dy[0], stream, [&](int64_t begin, int64_t end) {
    for (const GradientRows& rows : plan.rows)
      for (int64_t t = rows.row_begin; t < rows.row_begin + rows.rows; ++t) {
        float* const to = rows.gradient + offset + ids[static_cast<size_t>(t)] * width;
        const float* const from = dy.row(t);
        for (int64_t i = begin; i < end; ++i) to[i] += from[i];
      }
  });
}

}  // namespace lockstep::kernels::cpu
