#include "kernels/linear.h"

#include <vector>

#include "kernels/cpu/countdown.h"
#include "kernels/cpu/matrix_ops.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row_major-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

static_assert(kPanel % kStrip == 0);

// Strips of W^T as they lie in the panels.
template <class L>
struct PanelStrips {
  using Load = L;
  using Stored = typename L::Stored;
  static constexpr bool kRoom = false;
  const Stored* panels;
  int64_t depth;

  StripView<Stored> strip(int64_t index, size_t begin, size_t, float*) const {
    const int64_t column = index * kStrip;
    return {panels + column / kPanel * kPanel * depth + begin * kPanel + column % kPanel, kPanel, kRowsAhead * kPanel};
  }
};

// Strips of W: blocks of the panels transposed and widened in scratch memory. Rows of W past the last are never part of
// a chain; they only fill the last block.
template <class L>
struct TransposedPanelStrips {
  using Load = LoadF32;
  using Stored = typename L::Stored;
  static constexpr bool kRoom = true;
  const Stored* panels;
  int64_t depth;

  StripView<float> strip(int64_t index, size_t begin, size_t count, float* room) const {
    const int64_t column = index * kStrip;
    const int columns = static_cast<int>(std::min<int64_t>(kStrip, depth - column));
    for (size_t n = 0; n < count; n += kPanel)
      turn(panels + static_cast<int64_t>(begin + n) * depth + column * kPanel, columns, room + n * kStrip);
    return {room, kStrip};
  }

  static void turn(const Stored* block, int columns, float* to) {
    if constexpr (std::is_same_v<L, LoadBf16>) {
      transpose_bf16(block, kPanel, columns, kPanel / 2, to);
    } else if constexpr (std::is_same_v<L, LoadF32>) {
      transpose_words(block, kPanel, columns, kPanel, to);
    } else {
      alignas(64) float wide[kStrip * kPanel];
      VecF v[kStrip / kLanes];
      for (int i = 0; i < columns * kPanel; i += kStrip) {
        L::weights(block + i, v);
        L::put(v, wide + i);
      }
      transpose_words(wide, kPanel, columns, kPanel, to);
    }
  }
};

template <class L>
const typename L::Stored* panels_of(const PackedWeight& weight) {
  return static_cast<const typename L::Stored*>(weight.panels.data());
}

// ---- forward: one parallel call ----
// The first tasks make h, the others parts of y: the base's chains, then the residual, then the adapters' chains. So a
// part of y is written while it is near, and the workers meet once.

// Rows of one adapter through the A of one of its pairs.
struct ShrinkTask {
  const LoraPair* pair;
  Span rows;
  int64_t column;  // of h
};

std::vector<ShrinkTask> shrink_tasks(std::span<const LoraSegment> segments) {
  constexpr int64_t kMaxRows = 2 * kTileRows;
  std::vector<ShrinkTask> tasks;
  for (const LoraSegment& part : segments)
    for (int64_t row = 0; row < part.rows; row += kMaxRows) {
      const Span rows{part.row_begin + row, part.row_begin + std::min(part.rows, row + kMaxRows)};
      int64_t column = 0;
      for (const LoraPair& pair : part.pairs) {
        tasks.push_back({&pair, rows, column});
        column += pair.rank();
      }
    }
  return tasks;
}

// h = scale (x A): the scale that lora_expand gives to h.
void shrink(const ShrinkTask& task, const Tensor& h, const ConstTensor& x, int worker, Stream& stream) {
  const ConstTensor& a = task.pair->a;
  const auto a_stride = static_cast<size_t>(a.row_stride);
  const Matmul matmul{.rows = task.rows.size(),
                      .columns = a[1],
                      .depth = a[0],
                      .a = x.row(task.rows.begin),
                      .a_stride = static_cast<size_t>(x.row_stride),
                      .c = h.row(task.rows.begin) + task.column,
                      .c_stride = static_cast<size_t>(h.row_stride)};
  const Blocking blocking = choose_blocking<RowMajorStrips>(matmul, matmul.rows);
  compute_part(matmul, RowMajorStrips{a.f32(), a_stride, a[1]}, blocking, {0, matmul.rows}, {0, matmul.strips()},
               static_cast<float*>(stream.scratch(worker, blocking.scratch_bytes())));
  if (task.pair->scale == 1) return;
  for (int64_t r = 0; r < matmul.rows; ++r) {
    float* const row = matmul.c + r * matmul.c_stride;
    scale_row(row, static_cast<size_t>(a[1]), task.pair->scale, row);
  }
}

// The columns of y that are the pair's go on with its chains. At most kBlockRows rows; `room` holds rank * kStrip *
// kGroupStrips floats.
void expand(const LoraPair& pair, const Tensor& y, const float* h, size_t h_stride, Span rows, Span columns,
            float* room) {
  float* const c = y.row(rows.begin) + columns.begin;
  const auto c_stride = static_cast<size_t>(y.row_stride);
  const Matmul matmul{.rows = rows.size(),
                      .columns = columns.size(),
                      .depth = pair.rank(),
                      .a = h,
                      .a_stride = h_stride,
                      .init = c,
                      .init_stride = c_stride,
                      .c = c,
                      .c_stride = c_stride};
  const Blocking whole{.depth = static_cast<size_t>(matmul.depth), .rows = matmul.rows};
  const Span depth{0, matmul.depth};
  const RowMajorStrips strips{pair.b.f32() + columns.begin - pair.out_begin, static_cast<size_t>(pair.b.row_stride),
                              columns.size()};
  compute_strips(matmul, strips, whole, RowTiles(matmul, whole, {0, matmul.rows}, depth, nullptr), depth,
                 {0, matmul.strips()}, room);
}

inline Span overlap(Span a, Span b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

void expand_all(const cpu::LinearParts& parts, const Tensor& y, Span rows, Span columns, float* room) {
  for (const LoraSegment& part : parts.segments) {
    const Span own = overlap(rows, {part.row_begin, part.row_begin + part.rows});
    if (own.size() <= 0) continue;
    const float* h = parts.h.row(own.begin);
    for (const LoraPair& pair : part.pairs) {
      const Span to = overlap(columns, {pair.out_begin, pair.out_begin + pair.b[1]});
      if (to.size() > 0) expand(pair, y, h, static_cast<size_t>(parts.h.row_stride), own, to, room);
      h += pair.rank();
    }
  }
}

void add_residual(const Tensor& y, const ConstTensor& residual, Span rows, Span columns) {
  const Lanes d;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* const to = y.row(r);
    const float* const from = residual.row(r);
    int64_t i = columns.begin;
    for (; i + kLanes <= columns.end; i += kLanes)
      hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
    for (; i < columns.end; ++i) to[i] += from[i];
  }
}

template <class L>
void forward(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const cpu::LinearParts& parts,
             Stream& stream) {
  // Fetching a strip row from memory takes about as long as eight rows of arithmetic on it.
  constexpr int64_t kFetchCycles = 16;
  const Matmul matmul{.rows = x[0],
                      .columns = weight.rows,
                      .depth = weight.depth,
                      .a = x.f32(),
                      .a_stride = static_cast<size_t>(x.row_stride),
                      .init = parts.bias.empty() ? nullptr : parts.bias.f32(),
                      .init_stride = 0,
                      .c = y.f32(),
                      .c_stride = static_cast<size_t>(y.row_stride)};
  const PanelStrips<L> strips{panels_of<L>(weight), weight.depth};
  if (parts.residual.empty() && parts.segments.empty()) return run_matmul(matmul, strips, kFetchCycles, stream);
  if (matmul.rows == 0) return;
  const std::vector<ShrinkTask> shrinks = shrink_tasks(parts.segments);
  const auto num_shrinks = static_cast<int64_t>(shrinks.size());
  int64_t max_rank = 0;
  for (const ShrinkTask& task : shrinks) max_rank = std::max(max_rank, task.pair->rank());
  const Grid grid = choose_grid(matmul.work(kFetchCycles), stream.threads());
  const Blocking blocking = choose_blocking<PanelStrips<L>>(matmul, ceil_div(matmul.rows, grid.row_parts));
  const size_t room_bytes = static_cast<size_t>(max_rank * kStrip * kGroupStrips) * sizeof(float);
  cpu::Countdown h_left(num_shrinks);
  const auto run = [&](int64_t index, int worker) {
    if (index < num_shrinks) {
      const cpu::Countdown::One one(h_left);
      return shrink(shrinks[static_cast<size_t>(index)], parts.h, x, worker, stream);
    }
    const int64_t part = index - num_shrinks;
    auto* const scratch = static_cast<float*>(stream.scratch(worker, blocking.scratch_bytes() + room_bytes));
    float* const room = scratch + blocking.scratch_bytes() / sizeof(float);
    compute_part(matmul, strips, blocking, even_part(matmul.rows, grid.row_parts, part % grid.row_parts),
                 even_part(matmul.strips(), grid.strip_parts, part / grid.row_parts), scratch,
                 grid.after(matmul.strips(), part, stream.threads()), [&](Span rows, Span near) {
                   const Span columns{near.begin * kStrip, std::min(matmul.columns, near.end * kStrip)};
                   if (!parts.residual.empty()) add_residual(y, parts.residual, rows, columns);
                   h_left.wait();
                   expand_all(parts, y, rows, columns, room);
                 });
  };
  // Where the base matmul is too small to be split over threads, its adapter is too: everything runs on this thread.
  if (grid.tasks() > 1) return stream.parallel(num_shrinks + grid.tasks(), run);
  for (int64_t index = 0; index < num_shrinks + 1; ++index) run(index, 0);
}

template <class L>
void backward(const Tensor& dx, const ConstTensor& dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  constexpr int64_t kTransposeCycles = 8;
  const auto stride = static_cast<size_t>(dx.row_stride);
  const Matmul matmul{.rows = dy[0],
                      .columns = weight.depth,
                      .depth = weight.rows,
                      .a = dy.f32(),
                      .a_stride = static_cast<size_t>(dy.row_stride),
                      .init = accumulate ? dx.f32() : nullptr,
                      .init_stride = stride,
                      .c = dx.f32(),
                      .c_stride = stride};
  run_matmul(matmul, TransposedPanelStrips<L>{panels_of<L>(weight), weight.depth}, kTransposeCycles, stream);
}

void multiply_panels(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const cpu::LinearParts& parts,
                     Stream& stream) {
  switch (weight.format) {
    case WeightFormat::bf16: return forward<LoadBf16>(y, x, weight, parts, stream);
    case WeightFormat::f16: return forward<LoadF16>(y, x, weight, parts, stream);
    case WeightFormat::f32: return forward<LoadF32>(y, x, weight, parts, stream);
  }
}

void multiply_transposed_panels(const Tensor& dx, const ConstTensor& dy, const PackedWeight& weight, bool accumulate,
                                Stream& stream) {
  switch (weight.format) {
    case WeightFormat::bf16: return backward<LoadBf16>(dx, dy, weight, accumulate, stream);
    case WeightFormat::f16: return backward<LoadF16>(dx, dy, weight, accumulate, stream);
    case WeightFormat::f32: return backward<LoadF32>(dx, dy, weight, accumulate, stream);
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(multiply_panels);
HWY_EXPORT(multiply_transposed_panels);

namespace cpu {

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, const LinearParts& parts, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply_panels)(y, x, weight, parts, stream);
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply_transposed_panels)(dx, dy, weight, accumulate, stream);
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif
