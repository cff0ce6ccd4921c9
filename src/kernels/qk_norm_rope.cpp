#include "kernels/qk_norm_rope.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "kernels/attention_checks.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"
#include "kernels/linear_checks.h"
#include "kernels/linear_extras.h"
#include "kernels/lora_checks.h"
#include "kernels/rmsnorm.h"

namespace lockstep::kernels {
namespace {

Tensor heads_of(const Tensor& x, int64_t begin, int64_t end, int64_t head_dim) {
  Tensor view(x.f32() + begin * head_dim, DType::f32, {x[0], end - begin, head_dim});
  view.row_stride = x.row_stride;
  return view;
}
ConstTensor heads_of(const ConstTensor& x, int64_t begin, int64_t end, int64_t head_dim) {
  ConstTensor view(x.f32() + begin * head_dim, DType::f32, {x[0], end - begin, head_dim});
  view.row_stride = x.row_stride;
  return view;
}

Tensor rstd_of(const Tensor& rstd, int64_t begin, int64_t heads, int64_t rows) {
  return rstd.empty() ? Tensor() : Tensor(rstd.f32() + begin * rows, DType::f32, {heads * rows});
}

// Of x, a projection to `heads` heads or its gradient.
void require_heads(const ConstTensor& x, int64_t heads, const QkNormRopeSpec& spec, const char* op,
                   const char* argument, const Stream& stream) {
  const AttentionShape& shape = spec.shape;
  const QkNorms& norms = spec.norms;
  require_shape(shape, op);
  const int64_t rows = rows_of(x);
  require_tensor(x, activation_dtype(stream.device()), {rows, heads * shape.head_dim}, op, argument);
  if (norms.q_norm.empty() != norms.k_norm.empty())
    throw ShapeError({.what = "norms of q and k come together", .where = op});
  if (!norms.q_norm.empty()) {
    require_f32(norms.q_norm, {shape.head_dim}, op, "q_norm");
    require_f32(norms.k_norm, {shape.head_dim}, op, "k_norm");
  }
  if (static_cast<int64_t>(spec.positions.size()) != rows)
    throw ShapeError({.what = "one position per row",
                      .where = op,
                      .got = std::to_string(spec.positions.size()),
                      .wanted = std::to_string(rows)});
}

void require_call(const QkNormRopeCall& call, const ConstTensor& qkv, const char* op, const Stream& stream) {
  const AttentionShape& shape = call.spec.shape;
  const int64_t all = shape.heads + shape.kv_heads, count = rows_of(qkv);
  require_heads(qkv, all + shape.kv_heads, call.spec, op, "qkv", stream);
  require_tensor(call.qk, qkv.dtype, {count, all * shape.head_dim}, op, "qk");
  if (!call.rstd.empty()) require_f32(call.rstd, {all * count}, op, "rstd");
  if (call.store) require_sequences(call.rows.sequences, count, op);
}

// Whether attention can follow.
void require_stored(const QkNormRopeCall& call, const char* op) {
  if (!call.store || !call.rstd.empty())
    throw ShapeError({.what = "attention reads the keys of this call and keeps nothing for backward", .where = op});
}

// The scratch memory that a call takes, until it is queued.
std::optional<Arena::Scope> scope_of(const LinearCall& call) {
  if (!call.adapters.arena) return std::nullopt;
  return std::optional<Arena::Scope>(std::in_place, *call.adapters.arena);
}

// The projection and qk_norm_rope_forward where a GPU makes both at once. False: nothing was done.
bool forward_at_once(const QkNormRopeCall& call, const LinearCall& qkv, const char* op, Stream& stream) {
  if (stream.device() != Device::cuda) return false;
  require_unfinished(qkv, op, stream);
  require_call(call, qkv.y, op, stream);
  return !has_extras(qkv.adapters) && cuda::qk_norm_rope_forward(call, qkv, stream);
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeCall& call, ConstTensor qkv, Stream& stream) {
  require_call(call, qkv, "qk_norm_rope_forward", stream);
  if (stream.device() == Device::cuda) return cuda::qk_norm_rope_forward(call, qkv, stream);
  const AttentionShape& shape = call.spec.shape;
  const QkNorms& norms = call.spec.norms;
  const Tensor& qk = call.qk;
  const int64_t heads = shape.heads, all = shape.heads + shape.kv_heads, count = rows_of(qkv), d = shape.head_dim;
  if (!norms.q_norm.empty()) {
    rmsnorm_forward(heads_of(qk, 0, heads, d), rstd_of(call.rstd, 0, heads, count), heads_of(qkv, 0, heads, d),
                    norms.q_norm, norms.eps, stream);
    rmsnorm_forward(heads_of(qk, heads, all, d), rstd_of(call.rstd, heads, shape.kv_heads, count),
                    heads_of(qkv, heads, all, d), norms.k_norm, norms.eps, stream);
  } else if (qk.data != qkv.data) {
    for (int64_t t = 0; t < count; ++t) std::copy_n(qkv.row(t), all * d, qk.row(t));
  }
  rope(qk, all, call.spec.positions, call.spec.table, +1, stream);
  if (!call.store) return;
  kv_store(qk.cols(heads * d, all * d), qkv.cols(all * d, (all + shape.kv_heads) * d), shape, call.rows, stream);
}

void qk_norm_rope_forward(const QkNormRopeCall& call, UnfinishedLinear qkv, bool keep, Stream& stream) {
  if (!qkv.complete()) {
    require_call(call, qkv.y(), "qk_norm_rope_forward", stream);
    require_delta(qkv.y(), qkv.delta(), "qk_norm_rope_forward", stream);
    if (cuda::qk_norm_rope_forward(call, qkv, keep, stream)) return;
  }
  const Tensor complete = qkv.y();
  finish(std::move(qkv), stream);
  qk_norm_rope_forward(call, complete, stream);
}

void qk_norm_rope_forward(const QkNormRopeCall& call, const LinearCall& qkv, Stream& stream) {
  const auto scope = scope_of(qkv);
  if (forward_at_once(call, qkv, "qk_norm_rope_forward", stream)) return;
  qk_norm_rope_forward(call, begin_linear(qkv, stream), qkv.keep_y, stream);
}

void qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, UnfinishedLinear qkv, Stream& stream) {
  constexpr const char* kOp = "qk_norm_rope_attention_forward";
  const AttentionShape& shape = call.spec.shape;
  const Tensor complete = qkv.y();
  const int64_t width = shape.heads * shape.head_dim;
  require_stored(call, kOp);
  if (!qkv.complete()) {
    require_call(call, complete, kOp, stream);
    require_delta(complete, qkv.delta(), kOp, stream);
    if (cuda::qk_norm_rope_forward(call, qkv, false, stream))
      return attention_forward(o, {}, call.qk.cols(0, width), shape, call.rows, stream);
    finish(std::move(qkv), stream);
  }
  if (stream.device() == Device::cuda) {
    require_call(call, complete, kOp, stream);
    require_tensor(o, complete.dtype, {rows_of(complete), width}, kOp, "o");
    if (cuda::qk_norm_rope_attention_forward(o, call, complete, stream)) return;
  }
  qk_norm_rope_forward(call, complete, stream);
  attention_forward(o, {}, call.qk.cols(0, width), shape, call.rows, stream);
}

void qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, const LinearCall& qkv, Stream& stream) {
  constexpr const char* kOp = "qk_norm_rope_attention_forward";
  const AttentionShape& shape = call.spec.shape;
  require_stored(call, kOp);
  const auto scope = scope_of(qkv);
  if (forward_at_once(call, qkv, kOp, stream))
    return attention_forward(o, {}, call.qk.cols(0, shape.heads * shape.head_dim), shape, call.rows, stream);
  qk_norm_rope_attention_forward(o, call, begin_linear(qkv, stream), stream);
}

void qk_norm_rope_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const QkNormRopeSpec& spec,
                           Stream& stream) {
  constexpr const char* kOp = "qk_norm_rope_backward";
  const AttentionShape& shape = spec.shape;
  const QkNorms& norms = spec.norms;
  const int64_t heads = shape.heads, all = shape.heads + shape.kv_heads, count = rows_of(d_qkv), d = shape.head_dim;
  require_heads(d_qkv, all + shape.kv_heads, spec, kOp, "d_qkv", stream);
  if (!norms.q_norm.empty()) {
    require_tensor(qkv, d_qkv.dtype, {count, (all + shape.kv_heads) * d}, kOp, "qkv");
    require_f32(rstd, {all * count}, kOp, "rstd");
  }
  if (stream.device() == Device::cuda) return cuda::qk_norm_rope_backward(d_qkv, qkv, rstd, spec, stream);
  rope(d_qkv, all, spec.positions, spec.table, -1, stream);
  if (norms.q_norm.empty()) return;
  const auto norm_backward = [&](int64_t begin, int64_t end, const ConstTensor& weight) {
    const Tensor dq = heads_of(d_qkv, begin, end, d);
    rmsnorm_backward(dq, dq, heads_of(qkv, begin, end, d), weight,
                     ConstTensor(rstd.f32() + begin * count, DType::f32, {(end - begin) * count}), false, stream);
  };
  norm_backward(0, heads, norms.q_norm);
  norm_backward(heads, all, norms.k_norm);
}

}  // namespace lockstep::kernels
