// Rotary position embedding, half-split form: (a, b) = (x[i], x[i + d/2]) -> (a cos - b sin, b cos + a sin).
// Source: arXiv 2104.09864, as in Hugging Face rotate_half.
#pragma once

#include <span>

#include "core/memory.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// cos and sin of position * inv_freq[i], computed in f32 on the host (angle rounded to f32 as PyTorch does), then times
// `scale`. Rows are positions 0..positions-1; grows by rebuild. Immutable while ops run.
struct RopeTable {
  int64_t positions = 0;
  int64_t half = 0;  // head_dim / 2
  Buffer values;     // [2, positions, half] f32, cos and then sin, in the stream's memory

  const float* cos() const { return values.f32(); }
  const float* sin() const { return values.f32() + positions * half; }
};
RopeTable make_rope_table(std::span<const float> inv_freq, int64_t positions, float scale, Stream& stream);

// Rotates in place `heads` consecutive heads of every row (CPU only: kernels/qk_norm_rope.h is the op that layers call,
// forward and backward, and the one that exists on a GPU).
//   x [T, >= heads * 2 * half] f32     positions [T], each below table.positions
// direction +1 rotates, -1 rotates back (the gradient).   Throws ShapeError.
void rope(Tensor x, int64_t heads, std::span<const int32_t> positions, const RopeTable& table, int direction,
          Stream& stream);

}  // namespace lockstep::kernels
