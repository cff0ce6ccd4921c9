#include <utility>

#include "core/transfer.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "model/block.h"

namespace lockstep::model {

namespace {

class Backward {
 public:
  explicit Backward(const BlockBackward& call)
      : call_(call),
        g_(call.g),
        c_(*call.rows.config),
        w_(call.rows.weights->layers[static_cast<size_t>(call.layer)]),
        rows_(call.rows),
        t_(call.t),
        stream_(*call.rows.stream) {}

  void run() {
    if (!feed_forward()) return;
    if (!linear(g_.d_att, g_.d, t_.att, w_.o, t_.h.o, t_.mid, call_.x)) return;
    attention();
    kernels::rmsnorm_forward(t_.norm, g_.rstd, call_.x, w_.input_norm.view(), c_.norm_eps, stream_);
    if (!linear(g_.d_norm, g_.d_qkv, t_.norm, w_.qkv, t_.h.qkv, t_.qkv)) return;
    kernels::rmsnorm_backward(g_.d, g_.d_norm, call_.x, w_.input_norm.view(), g_.rstd, true, stream_);
  }

 private:
  // Whether anything below `layer` in this block, or any block below, needs a gradient.
  bool needed_below(const Linear& layer) const {
    if (!call_.is_last) return true;
    for (int64_t site = w_.qkv.site; site < layer.site; ++site)
      if (rows_.adapters.at(site)) return true;
    return false;
  }

  // dx from dy, and the adapters' gradients. False: nothing below is needed, dx is not computed.
  bool linear(Tensor dx, ConstTensor dy, ConstTensor x, const Linear& layer, Tensor h, ConstTensor y,
              ConstTensor residual = {}) {
    const bool go_on = needed_below(layer);
    const AdaptedLinear adapted(layer, rows_.adapters, h, *rows_.arena);
    kernels::linear_backward(adapted.backward(go_on ? dx : Tensor(), dy, x, y, residual), stream_);
    return go_on;
  }

  bool feed_forward() {
    if (rows_.adapters.at(w_.down.site) && !call_.act_is_kept) kernels::swiglu_forward(t_.act, t_.gate_up, stream_);
    const Arena::Scope scope(*rows_.arena);
    const ConstTensor gate_up = kept_gate_up();
    if (!activation()) return false;
    kernels::rmsnorm_forward(t_.norm, g_.rstd, t_.mid, w_.post_norm.view(), c_.norm_eps, stream_);
    if (!linear(g_.d_norm, t_.gate_up, t_.norm, w_.gate_up, t_.h.gate_up, gate_up)) return false;
    kernels::rmsnorm_backward(g_.d, g_.d_norm, t_.mid, w_.post_norm.view(), g_.rstd, true, stream_);
    return true;
  }

  // Gates and ups before their gradients take their place, for those who read them once more.
  ConstTensor kept_gate_up() {
    if (!lora::has_magnitudes(rows_.adapters.rows, w_.gate_up.site)) return {};
    const Tensor kept = rows_.arena->alloc({t_.gate_up[0], t_.gate_up[1]}, t_.gate_up.dtype);
    copy(kept.data, t_.gate_up.data, static_cast<size_t>(kept.elements() * dtype_bytes(kept.dtype)), stream_);
    return kept;
  }

  bool activation() {
    const Arena::Scope scope(*rows_.arena);
    const bool go_on = needed_below(w_.down);
    const AdaptedLinear down(w_.down, rows_.adapters, t_.h.down, *rows_.arena);
    kernels::UnfinishedLinear d_act =
        kernels::begin_linear_backward(down.backward(go_on ? g_.d_act : Tensor(), g_.d, t_.act, call_.y, t_.mid),
                                       stream_);
    if (go_on) kernels::swiglu_backward(t_.gate_up, std::move(d_act), t_.gate_up, stream_);
    return go_on;
  }

  void attention() {
    const int64_t q = c_.q_width(), qk = q + c_.kv_width();
    const Tensor dq = g_.d_qkv.cols(0, q), dk = g_.d_qkv.cols(q, qk), dv = g_.d_qkv.cols(qk, qk + c_.kv_width());
    kernels::attention_backward(dq, dk, dv, g_.d_att, t_.qk.cols(0, q), t_.att, t_.stats, g_.att_dot,
                                attention_shape(rows_, call_.layer), rows_.attention, stream_);
    kernels::qk_norm_rope_backward(g_.d_qkv, t_.qkv, t_.qk_rstd.empty() ? g_.qk_rstd : t_.qk_rstd,
                                   qk_norm_rope_spec(call_.layer, rows_), stream_);
  }

  const BlockBackward& call_;
  const BlockGradient& g_;
  const ModelSpec& c_;
  const LayerWeights& w_;
  const Rows& rows_;
  const BlockTensors& t_;
  Stream& stream_;
};

}  // namespace

void block_backward(const BlockBackward& call) {
  Backward(call).run();
}

}  // namespace lockstep::model
