// A linear layer with everything that comes with it, forward and backward, as one description of a call. What is fused
// into one launch is the backend's choice and never changes a bit. There is no gradient for the weight: the base is
// frozen. T rows, K inputs, N outputs, F = N / 2.
#pragma once

#include <span>

#include "core/memory.h"
#include "kernels/lora.h"
#include "kernels/packed_weight.h"
#include "kernels/unfinished_linear.h"

namespace lockstep::kernels {

// What a linear layer reads: x, or rmsnorm_forward(x, norm_weight, norm_eps).
struct LinearInput {
  ConstTensor x;                 // [T, K] activations
  ConstTensor norm_weight = {};  // [K] f32; empty: no norm
  float norm_eps = 0;
  Tensor norm = {};  // [T, K] activations: where the normalized rows may be written; not empty with a norm
  Tensor rstd = {};  // [T] f32, or empty: written as by rmsnorm_forward; then `norm` is, too
};

// The adapters of the rows at this layer. Rows of no segment and no tile are base rows.
struct LinearAdapters {
  std::span<const LoraSegment> segments = {};  // in order of rows
  LoraTiles tiles = {};                        // on a GPU: few rows of many adapters, in one launch; none in segments
  int64_t site = 0;                            // of the tiles
  LoraDropout dropout = {};                    // of what the segments' pairs read
  // On a GPU, where one segment has all rows, without dropout: x A of all pairs, [T, total rank]. Forward writes it,
  // backward reads it instead of computing it again. Empty: forward takes memory of `arena`, backward computes it.
  Tensor h = {};
  Arena* arena = nullptr;  // of the stream's device, for h and masked inputs; needed unless empty()

  bool empty() const { return segments.empty() && tiles.num_tiles == 0; }
};

// y = bias + x W^T + residual + scale (dropout(x) A) B of each row's adapter;  act = swiglu_forward(y), if act is given
//   y         [T, N] activations, or f32 on a GPU (logits)   overwritten; aliases nothing
//   bias      [N] f32, or empty          residual [T, N] like y, or empty; not together with act
//   act       [T, F] activations, or empty
//   keep_y    false: y [T, N] is scratch memory, left undefined; without act only the op that takes it reads y
// CPU: the chain over k starts at bias[n], or at 0; then the residual is added; then the adapter's chains over the rank
// go on. CUDA: the chain of groups of 16 k in order starts at 0; bias and residual are added in f32 before the one
// rounding, then the adapter's part in f32 before the next. A row's bits do not depend on T or on other rows.
// Rows of a segment with a weight or a bias of its own: the same with these. With a factor f or subtracted pairs: the
// chains start at 0, and y = (x W^T + the adapter's part + what is subtracted) * f + bias + residual; on a CPU one
// rounding each, in this order, on a GPU y is rounded before f.
// Overwrites its outputs. Queues on `stream`. Throws ShapeError, DTypeError; DeviceError for tiles or h on a CPU.
struct LinearCall {
  Tensor y;
  LinearInput input;
  const PackedWeight& weight;
  ConstTensor bias = {}, residual = {};
  LinearAdapters adapters = {};
  Tensor act = {};
  bool keep_y = true;
};
void linear(const LinearCall& call, Stream& stream);

// The same without act, of which the op that takes the result may do the end: kernels/unfinished_linear.h. What it
// points at lies in adapters.arena: no Scope of it may end before that op.
UnfinishedLinear begin_linear(const LinearCall& call, Stream& stream);

// dx (+)= dy W + the adapters' part, scale (dy B^T) A^T under dropout's mask;  each segment's dA and dB are added to
// its gradients (lora_gradient)
//   dx    [T, K] activations; empty: nobody wants it
//   dy    [T, N] activations
//   x     [T, K] activations: what forward's matmul read, behind the norm; only needed with adapters
// The chain of dy W runs over n in order and, with `accumulate`, continues dx (CUDA: groups of 16 n in order, and dx is
// added in f32 before the rounding). The adapter's part is added to its end. Segments with pairs have gradients; there
// are no tiles. For a segment with a factor f, dy f takes the place of dy; |W + scale B A| in it is a constant, as in
// PEFT. What a segment trains beside its pairs, added to its lanes as well, f32, one chain over their rows in order:
//   d bias += sum of dy;   d magnitude += sum of dy (x W^T + the adapter's part) / |W + scale B A|;   dW += (dy f)^T x
//   y, bias, residual   what forward wrote and read: dy's partner in d magnitude is made of them, (y - residual - bias)
//                       / f. It is computed again from x where y is empty, some f is nearly 0, or a GPU's y, which is
//                       bf16, has a residual in it
// Throws as linear().
struct LinearBackwardCall {
  Tensor dx;
  ConstTensor dy;
  const PackedWeight& weight;
  bool accumulate = false;
  ConstTensor x = {};
  LinearAdapters adapters = {};
  ConstTensor y = {}, bias = {}, residual = {};
};
void linear_backward(const LinearBackwardCall& call, Stream& stream);
// As begin_linear: dx of the result is its y.
UnfinishedLinear begin_linear_backward(const LinearBackwardCall& call, Stream& stream);

}  // namespace lockstep::kernels
