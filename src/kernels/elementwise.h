// Element by element over matrices of one shape (row strides free).
#pragma once

#include <array>
#include <span>

#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// y = y + x
void add(Tensor y, ConstTensor x, Stream& stream);

// LoRA dropout: y[t,k] = keep ? x[t,k] / (1 - p) : 0 (accumulate: y += ...), keep = uniform01(bits) >= p with
// bits = philox(key, {step, sample[t], position[t], module << 16 | k / 4})[k % 4]: the mask of a token depends on
// nothing else. The same call on the gradient is the backward pass.
//   x, y [T, K] f32; y may be x when not accumulating; K / 4 < 65536
struct DropoutCounter {
  uint64_t key = 0;
  uint32_t step = 0;
  uint32_t module = 0;
  std::span<const int32_t> sample, position;  // [T]
};
void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream);

}  // namespace lockstep::kernels
