// Element by element, and row by row, over matrices (row strides free).
#pragma once

#include <array>
#include <span>

#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// y = y + x          both f32, or both activations
void add(Tensor y, ConstTensor x, Stream& stream);

// to[i] = from[rows[i]];  to[rows[i]] = from[i] (rows distinct).   Rank 1 or 2, of one type; rows in the stream's
// memory.
void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);
void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);

// Whether no element is infinite or NaN. x [N] f32, on a GPU also activations. Waits for the stream.
bool all_finite(ConstTensor x, Stream& stream);

// LoRA dropout: y[t,k] = keep ? x[t,k] / (1 - p) : 0 (accumulate: y += ...), keep = uniform01(bits) >= p with
// bits = philox(key, {step, sample[t], position[t], module << 16 | k / 4})[k % 4]: the mask of a token depends on
// nothing else. The same call on the gradient is the backward pass.
//   x, y [T, K] activations; y may be x when not accumulating; K / 4 < 65536
struct DropoutCounter {
  uint64_t key = 0;
  uint32_t step = 0;
  uint32_t module = 0;
  std::span<const int32_t> sample, position;  // [T] in the stream's memory
};
void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream);

}  // namespace lockstep::kernels
