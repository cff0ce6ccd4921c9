// The optimizer's arithmetic over flat f32 arrays.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

struct AdamWStep {
  // Double, as PyTorch's Python scalars are.
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t step = 1;      // from 1, for bias correction
  float grad_scale = 1;  // clipping factor, multiplied into the gradient first
};

// g = grad_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
// w_new = w (1 - lr wd) - lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
// PyTorch's order of operations (torch.optim.AdamW, single tensor): the factors lr / bias1, sqrt(bias2), 1 - lr wd and
// 1 - b are worked out in double and rounded to f32; m by lerp (one fma); denom = sqrt(v) / sqrt(bias2) + eps.
//   all [N] f32; m, v updated in place; w_new overwritten and distinct from w (the next version's buffer)
//   working [N] bf16 or empty: w_new rounded, what a GPU's kernels read
// Throws ShapeError, DTypeError, ConfigError (step < 1).   Source: arXiv 1711.05101, algorithm 2.
void adamw(Tensor w_new, Tensor working, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options,
           Stream& stream);

// working = w rounded to bf16.   [N]
void round_to_working(Tensor working, ConstTensor w, Stream& stream);

// One matrix [rows, cols] of a flat array, at `offset`.
struct FlatMatrix {
  int64_t offset = 0, rows = 0, cols = 0;
};
// The same, transposed, of some matrices only: working[offset + c * rows + r] = w[offset + r * cols + c].
void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream);

// sum of x^2 in double, in blocks of 4096 elements in order, 16 lanes inside a block. Waits for the result.   x [N] f32
double sum_of_squares(ConstTensor x, Stream& stream);

}  // namespace lockstep::kernels
