// Between the q/k/v projection and attention, fused, forward and backward: q/k norm, RoPE, and the KV cache.
//   q' = rope(norm(q)), k' = rope(norm(k)), v; k' and v are stored in their KV blocks.
// H query heads, C key/value heads, K head_dim.
//   norm    rmsnorm_forward of each head on its own, where the model has q/k norms
//   rope    the rotation of kernels/rope.h, by the angles of the row's position
#pragma once

#include <span>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/rope.h"

namespace lockstep::kernels {

// Norms of the queries and of the keys: both or neither.
struct QkNorms {
  ConstTensor q_norm, k_norm;  // [K] f32
  float eps = 0;
};

// What forward and backward of a layer share.
struct QkNormRopeSpec {
  QkNorms norms = {};
  const RopeTable& table;
  std::span<const int32_t> positions;  // [T] of the rows, in the stream's memory
  AttentionShape shape;
};

//   qk       [T, (H + C) K]    q' and k', written; may be the first columns of qkv. k' is undefined if it is stored.
//   rstd     [T H] of q, then [T C] of k, f32; written unless empty; needed by qk_norm_rope_backward with norms
//   rows     where k' and v are stored, unless `store` is false
// On the CPU entries of a block beyond the written position are set to 0 when its first position is written.
struct QkNormRopeCall {
  QkNormRopeSpec spec;
  Tensor qk;
  Tensor rstd = {};
  AttentionRows rows = {};
  bool store = true;
};

// qkv [T, (H + 2 C) K] activations, as the projection made it. Queues on `stream`. A row's bits do not depend on T.
// Throws ShapeError, DTypeError.
void qk_norm_rope_forward(const QkNormRopeCall& call, ConstTensor qkv, Stream& stream);
// The same, which first adds what qkv lacks. `keep`: qkv is read again by backward, so the sum is written to it.
void qk_norm_rope_forward(const QkNormRopeCall& call, UnfinishedLinear qkv, bool keep, Stream& stream);
// linear(qkv), then the same: q, k and v of qkv.y, which is left undefined unless qkv.keep_y. On a GPU many rows may be
// one launch, which then leaves qkv.y unwritten. call.qk may be the first columns of qkv.y; it overlaps neither
// qkv.input.x nor qkv.input.norm. Throws as begin_linear(), too.
void qk_norm_rope_forward(const QkNormRopeCall& call, const LinearCall& qkv, Stream& stream);

// qk_norm_rope_forward that stores, without rstd, then attention_forward of its queries without stats into o [T, H K].
// A decode step of few sequences on a GPU may be one launch, which then leaves qk unwritten. qkv is left undefined.
void qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, UnfinishedLinear qkv, Stream& stream);
void qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, const LinearCall& qkv, Stream& stream);

// Backward of RoPE and of the q/k norm, in place: d_qkv holds dq', dk', dv and becomes dq, dk, dv (dv as it is).
//   qkv      [T, (H + 2 C) K]   as qk_norm_rope_forward read it; only read with norms, as rstd
void qk_norm_rope_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const QkNormRopeSpec& spec, Stream& stream);

}  // namespace lockstep::kernels
