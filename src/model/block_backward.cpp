#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "model/block.h"

namespace lockstep::model {

namespace {

using lora::Product;

class Backward {
 public:
  Backward(const BlockGradient& g, int64_t layer, const Rows& rows, const BlockTensors& t,
           const lora::AdapterVersion& adapter, const kernels::GradientPlan& lanes, bool last)
      : g_(g),
        c_(*rows.config),
        w_(rows.weights->layers[static_cast<size_t>(layer)]),
        layer_(layer),
        rows_(rows),
        t_(t),
        adapter_(adapter),
        lanes_(lanes),
        last_(last),
        stream_(*rows.stream) {}

  void run(ConstTensor x) {
    if (!feed_forward()) return;
    if (!attention_out()) return;
    attention();
    kernels::rmsnorm_forward(t_.norm, g_.rstd, x, w_.input_norm.view(), c_.norm_eps, stream_);
    if (!product(g_.d_norm, g_.d_qkv, t_.norm, w_.qkv, Product::qkv)) return;
    kernels::rmsnorm_backward(g_.d, g_.d_norm, x, w_.input_norm.view(), g_.rstd, true, stream_);
  }

 private:
  bool adapted(Product product) const { return !adapter_.layout->site(layer_, product).empty(); }

  // Whether anything at or below `product` of this block, or any block below, needs a gradient.
  bool needed_below(Product product) const {
    if (!last_) return true;
    for (int p = 0; p < static_cast<int>(product); ++p)
      if (adapted(static_cast<Product>(p))) return true;
    return false;
  }

  lora::KeptInput input(ConstTensor x, Product which) const { return {x, t_.h[static_cast<size_t>(which)]}; }

  // dx from dy, and the adapter's gradient. False: nothing below is needed, dx is not computed.
  bool product(Tensor dx, ConstTensor dy, ConstTensor x, const kernels::PackedWeight& weight, Product which) {
    const bool go_on = needed_below(which);
    lora::adapted_linear_backward(go_on ? dx : Tensor(), dy, input(x, which), weight, layer_, which, adapter_, lanes_,
                                  rows_.dropout, *rows_.arena, stream_);
    return go_on;
  }

  bool feed_forward() {
    if (adapted(Product::down) && !t_.is_kept) kernels::swiglu_forward(t_.act, t_.gate_up, stream_);
    if (!activation()) return false;
    kernels::rmsnorm_forward(t_.norm, g_.rstd, t_.mid, w_.post_norm.view(), c_.norm_eps, stream_);
    if (!product(g_.d_norm, t_.gate_up, t_.norm, w_.gate_up, Product::gate_up)) return false;
    kernels::rmsnorm_backward(g_.d, g_.d_norm, t_.mid, w_.post_norm.view(), g_.rstd, true, stream_);
    return true;
  }

  bool activation() {
    const Arena::Scope scope(*rows_.arena);
    const bool go_on = needed_below(Product::down);
    const lora::LinearDelta rest = lora::adapted_linear_backward_begin(
        go_on ? g_.d_act : Tensor(), g_.d, input(t_.act, Product::down), w_.down, layer_, Product::down, adapter_,
        lanes_, rows_.dropout, *rows_.arena, stream_);
    if (go_on) kernels::swiglu_backward(t_.gate_up, g_.d_act, rest.get(), t_.gate_up, stream_);
    return go_on;
  }

  bool attention_out() { return product(g_.d_att, g_.d, t_.att, w_.o, Product::o); }

  void attention() {
    const int64_t q = c_.q_width(), qk = q + c_.kv_width();
    const Tensor dq = g_.d_qkv.cols(0, q), dk = g_.d_qkv.cols(q, qk), dv = g_.d_qkv.cols(qk, qk + c_.kv_width());
    const kernels::AttentionShape shape = attention_shape(rows_, layer_);
    kernels::attention_backward(dq, dk, dv, g_.d_att, t_.qk.cols(0, q), t_.att, t_.stats, g_.att_dot, shape,
                                rows_.attention, stream_);
    kernels::heads_backward(g_.d_qkv, t_.qkv, t_.is_kept ? t_.qk_rstd : g_.qk_rstd, head_norms(c_, w_), *rows_.rope, rows_.positions, shape,
                            stream_);
  }

  const BlockGradient& g_;
  const ModelConfig& c_;
  const LayerWeights& w_;
  const int64_t layer_;
  const Rows& rows_;
  const BlockTensors& t_;
  const lora::AdapterVersion& adapter_;
  const kernels::GradientPlan& lanes_;
  const bool last_;
  Stream& stream_;
};

}  // namespace

void block_backward(const BlockGradient& g, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t,
                    const lora::AdapterVersion& adapter, const kernels::GradientPlan& lanes, bool last) {
  Backward(g, layer, rows, t, adapter, lanes, last).run(x);
}

}  // namespace lockstep::model
