#include "kernels/rmsnorm.h"
#include "model/block.h"
#include "model/block_parts.h"
#include "model/mlp.h"

namespace lockstep::model {

namespace {

// Computes the gradient of qkv from that of attention's output.
void attention_backward(const BlockBackward& call) {
  const ModelSpec& c = *call.rows.config;
  const BlockGradient& g = call.g;
  const BlockTensors& t = call.t;
  Stream& stream = *call.rows.stream;
  const int64_t q = c.q_width(), qk = q + c.kv_width();
  const Tensor dq = g.d_qkv.cols(0, q), dk = g.d_qkv.cols(q, qk), dv = g.d_qkv.cols(qk, qk + c.kv_width());
  kernels::attention_backward(dq, dk, dv, g.d_att, t.qk.cols(0, q), t.att, t.stats, {g.att_dot, g.att_score_gradients},
                              attention_shape(call.rows, call.layer), call.rows.attention, stream);
  kernels::qk_norm_rope_backward(g.d_qkv, t.qkv, t.qk_rstd.empty() ? g.qk_rstd : t.qk_rstd,
                                 qk_norm_rope_spec(call.layer, call.rows), stream);
}

}  // namespace

Tensor rstd_for_backward(const BlockBackward& call, ConstTensor x, const Vector& weight, Tensor norm,
                         Tensor kept_rstd) {
  if (!kept_rstd.empty()) return kept_rstd;
  kernels::rmsnorm_forward(norm, call.g.rstd, x, weight.view(), call.rows.config->norm_eps, *call.rows.stream);
  return call.g.rstd;
}

bool needed_below(const BlockBackward& call, const Linear& layer) {
  if (!call.is_last) return true;
  for (int64_t site = weights_of(call.rows, call.layer).qkv.site; site < layer.site; ++site)
    if (call.rows.adapters.at(site)) return true;
  return false;
}

bool linear_backward(const BlockBackward& call, Tensor dx, ConstTensor dy, ConstTensor x, const Linear& layer, Tensor h,
                     ConstTensor y, ConstTensor residual) {
  const bool go_on = needed_below(call, layer);
  const AdaptedLinear linear = adapted(layer, call.rows, h);
  kernels::linear_backward(linear.backward(go_on ? dx : Tensor(), dy, x, y, residual), *call.rows.stream);
  return go_on;
}

void block_backward(const BlockBackward& call) {
  const LayerWeights& w = weights_of(call.rows, call.layer);
  const BlockTensors& t = call.t;
  const BlockGradient& g = call.g;
  Stream& stream = *call.rows.stream;
  if (!mlp_backward(call)) return;
  if (!linear_backward(call, g.d_att, g.d, t.att, w.o, t.h.o, t.mid, call.x)) return;
  attention_backward(call);
  const Tensor rstd = rstd_for_backward(call, call.x, w.input_norm, t.norm, t.norm_rstd);
  if (!linear_backward(call, g.d_norm, g.d_qkv, t.norm, w.qkv, t.h.qkv, t.qkv)) return;
  kernels::rmsnorm_backward(g.d, g.d_norm, call.x, w.input_norm.view(), rstd, true, stream);
}

}  // namespace lockstep::model
