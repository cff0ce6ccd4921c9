// Rows of a tensor, and how they are spread over the workers of a Stream.
#pragma once

#include <algorithm>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels::cpu {

// Calls f(begin, end) over ranges that cover [0, rows). A range holds at least kElementsPerTask elements, so that a
// small matrix (one decode step) never pays for waking a thread.
inline constexpr int64_t kElementsPerTask = 16384;

template <class F>
void split_rows(Stream& stream, int64_t rows, int64_t row_elements, const F& f) {
  const int64_t step = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, row_elements));
  const int64_t tasks = (rows + step - 1) / step;
  if (tasks <= 1) {
    if (rows > 0) f(int64_t{0}, rows);
    return;
  }
  stream.parallel(tasks, [&](int64_t task, int) { f(task * step, std::min(rows, (task + 1) * step)); });
}

// The last dimension of a [T, D] or [T, H, D] tensor as rows.
struct RowView {
  float* data;
  int64_t inner, outer_stride, width;

  explicit RowView(const ConstTensor& x)
      : data(const_cast<float*>(x.f32())),
        inner(x.rank == 3 ? x.shape[1] : 1),
        outer_stride(x.row_stride),
        width(x.shape[x.rank - 1]) {}
  float* row(int64_t i) const { return data + (i / inner) * outer_stride + (i % inner) * width; }
};

}  // namespace lockstep::kernels::cpu
