#include "model/mlp.h"

#include <utility>

#include "core/transfer.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "model/block_parts.h"

namespace lockstep::model {

namespace {

// Computes gate_up, and its activation if `act` is given.
void forward_gate_up(Tensor act, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  const AdaptedLinear gate_up = adapted(w.gate_up, rows, t.h.gate_up);
  kernels::LinearCall call =
      gate_up.forward(t.mlp.gate_up, normed(t.mid, w.post_norm, t.post_norm, t.post_norm_rstd, rows));
  call.act = act;
  call.keep_y = keeps(t);
  kernels::linear(call, *rows.stream);
}

// A copy of gates and ups, which a magnitude's gradient reads after their own gradients have overwritten them.
ConstTensor kept_gate_up(const Rows& rows, const LayerWeights& w, const BlockTensors& t) {
  if (!lora::has_magnitudes(rows.adapters.rows, w.gate_up.site)) return {};
  const Tensor kept = rows.arena->alloc({t.mlp.gate_up[0], t.mlp.gate_up[1]}, t.mlp.gate_up.dtype);
  copy(kept.data, t.mlp.gate_up.data, static_cast<size_t>(kept.elements() * dtype_bytes(kept.dtype)), *rows.stream);
  return kept;
}

// Turns the output's gradient into that of gate_up, in place. Returns false if nothing below `down` needs one.
bool activation_backward(const BlockBackward& call, const LayerWeights& w) {
  const BlockTensors& t = call.t;
  const Arena::Scope scope(*call.rows.arena);
  const bool go_on = needed_below(call, w.down);
  const AdaptedLinear down = adapted(w.down, call.rows, t.h.down);
  const Tensor dx = go_on ? call.g.mlp.d_act : Tensor();
  kernels::UnfinishedLinear d_act =
      kernels::begin_linear_backward(down.backward(dx, call.g.d, t.mlp.act, call.y, t.mid), *call.rows.stream);
  if (go_on) kernels::swiglu_backward(t.mlp.gate_up, std::move(d_act), t.mlp.gate_up, *call.rows.stream);
  return go_on;
}

}  // namespace

void mlp_forward_kept(int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_gate_up({}, layer, rows, t);
}

void mlp_forward(Tensor y, int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_gate_up(t.mlp.act, layer, rows, t);
  const AdaptedLinear down = adapted(weights_of(rows, layer).down, rows, t.h.down);
  kernels::linear(down.forward(y, {.x = t.mlp.act}, t.mid), *rows.stream);
}

bool mlp_backward(const BlockBackward& call) {
  const LayerWeights& w = weights_of(call.rows, call.layer);
  const BlockTensors& t = call.t;
  const BlockGradient& g = call.g;
  Stream& stream = *call.rows.stream;
  if (call.rows.adapters.at(w.down.site) && !call.act_is_kept)
    kernels::swiglu_forward(t.mlp.act, t.mlp.gate_up, stream);
  const Arena::Scope scope(*call.rows.arena);
  const ConstTensor gate_up = kept_gate_up(call.rows, w, t);
  if (!activation_backward(call, w)) return false;
  const Tensor rstd = rstd_for_backward(call, t.mid, w.post_norm, t.post_norm, t.post_norm_rstd);
  if (!linear_backward(call, g.d_norm, t.mlp.gate_up, t.post_norm, w.gate_up, t.h.gate_up, gate_up)) return false;
  kernels::rmsnorm_backward(g.d, g.d_norm, t.mid, w.post_norm.view(), rstd, true, stream);
  return true;
}

}  // namespace lockstep::model
