#include "model/block.h"

#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::model {

namespace {

using lora::Product;

const LayerWeights& weights_of(const Rows& rows, int64_t layer) {
  return rows.weights->layers[static_cast<size_t>(layer)];
}

// One of the block's products, the residual (or none), and of the adapter what the next op does not add.
lora::LinearDelta begin_product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias,
                                ConstTensor residual, int64_t layer, Product which, const Rows& rows) {
  return lora::adapted_linear_begin(y, x, weight, bias.view(), residual, layer, which, {rows.adapters, rows.tiles},
                                    rows.dropout, *rows.arena, *rows.stream);
}

void product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias, ConstTensor residual,
             int64_t layer, Product which, const Rows& rows) {
  lora::adapted_linear_forward(y, x, weight, bias.view(), residual, layer, which, {rows.adapters, rows.tiles},
                               rows.dropout, *rows.arena, *rows.stream);
}

// Whether backward reads the block's tensors again.
bool kept(const BlockTensors& t) {
  return !t.stats.empty();
}

}  // namespace

kernels::HeadNorms head_norms(const ModelConfig& config, const LayerWeights& weights) {
  if (!config.qk_norm) return {};
  return {.q_norm = weights.q_norm.view(), .k_norm = weights.k_norm.view(), .eps = config.norm_eps};
}

void prepare_heads(int64_t layer, const Rows& rows, const BlockTensors& t, Tensor rstd, bool store) {
  kernels::heads_forward(t.qk, rstd, t.qkv, head_norms(*rows.config, weights_of(rows, layer)), *rows.rope,
                         rows.positions, attention_shape(rows, layer), rows.attention, store, *rows.stream);
}

namespace {

// All before the product of gate and up: t.norm holds what that reads.
void attention_half(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const ModelConfig& c = *rows.config;
  const LayerWeights& w = weights_of(rows, layer);
  Stream& stream = *rows.stream;
  const kernels::AttentionShape shape = attention_shape(rows, layer);
  kernels::rmsnorm_forward(t.norm, {}, x, w.input_norm.view(), c.norm_eps, stream);
  {
    const Arena::Scope scope(*rows.arena);
    const lora::LinearDelta delta = begin_product(t.qkv, t.norm, w.qkv, w.qkv_bias, {}, layer, Product::qkv, rows);
    kernels::heads_forward(t.qk, {}, t.qkv, delta.get(), kept(t), head_norms(c, w), *rows.rope, rows.positions, shape,
                           rows.attention, true, stream);
  }
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, c.q_width()), shape, rows.attention, stream);
  product(t.mid, t.att, w.o, w.o_bias, x, layer, Product::o, rows);
  kernels::rmsnorm_forward(t.norm, {}, t.mid, w.post_norm.view(), c.norm_eps, stream);
}

}  // namespace

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  attention_half(x, layer, rows, t);
  product(t.gate_up, t.norm, w.gate_up, w.gate_up_bias, {}, layer, Product::gate_up, rows);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  attention_half(x, layer, rows, t);
  {
    const Arena::Scope scope(*rows.arena);
    const lora::LinearDelta delta =
        begin_product(t.gate_up, t.norm, w.gate_up, w.gate_up_bias, {}, layer, Product::gate_up, rows);
    kernels::swiglu_forward(t.act, t.gate_up, delta.get(), kept(t), *rows.stream);
  }
  product(y, t.act, w.down, w.down_bias, t.mid, layer, Product::down, rows);
}

}  // namespace lockstep::model
