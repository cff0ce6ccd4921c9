#include "model/block.h"

#include <algorithm>

#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::model {

namespace {

using lora::Product;

const LayerWeights& weights_of(const Rows& rows, int64_t layer) {
  return rows.weights->layers[static_cast<size_t>(layer)];
}

// One of the block's products, the residual (or none), and the adapter.
void product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias, ConstTensor residual,
             int64_t layer, Product which, const Rows& rows) {
  lora::adapted_linear_forward(y, x, weight, bias.view(), residual, layer, which, {rows.adapters, rows.tiles},
                               rows.dropout, *rows.arena, *rows.stream);
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

// Whether some row's adapter has a part in this product.
bool adapted(int64_t layer, Product which, const Rows& rows) {
  const auto has_part = [&](const lora::AdapterRows& part) {
    return part.adapter != nullptr && !part.adapter->layout->site(layer, which).empty();
  };
  return rows.tiles.num_tiles > 0 || std::any_of(rows.adapters.begin(), rows.adapters.end(), has_part);
}

// product(norm(x)). `norm` holds the norm afterwards where an adapter reads it, too.
void normed_product(Tensor y, Tensor norm, const kernels::LinearInput& input, const kernels::PackedWeight& weight,
                    const Vector& bias, int64_t layer, Product which, const Rows& rows) {
  if (!adapted(layer, which, rows))
    return kernels::normed_linear_forward(y, norm, input, weight, bias.view(), *rows.stream);
  kernels::rmsnorm_forward(norm, {}, input.x, input.norm_weight, input.norm_eps, *rows.stream);
  product(y, norm, weight, bias, {}, layer, which, rows);
}

kernels::LinearInput feed_forward_input(const Rows& rows, const LayerWeights& w, const BlockTensors& t) {
  return {.x = t.mid, .norm_weight = w.post_norm.view(), .norm_eps = rows.config->norm_eps};
}

// m = x + o(attention(qkv(norm(x))))
void attention_half(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const ModelConfig& c = *rows.config;
  const LayerWeights& w = weights_of(rows, layer);
  const kernels::LinearInput input{.x = x, .norm_weight = w.input_norm.view(), .norm_eps = c.norm_eps};
  normed_product(t.qkv, t.norm, input, w.qkv, w.qkv_bias, layer, Product::qkv, rows);
  prepare_heads(layer, rows, t, {}, true);
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, c.q_width()), attention_shape(rows, layer), rows.attention,
                             *rows.stream);
  product(t.mid, t.att, w.o, w.o_bias, x, layer, Product::o, rows);
}

}  // namespace

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  attention_half(x, layer, rows, t);
  normed_product(t.gate_up, t.norm, feed_forward_input(rows, w, t), w.gate_up, w.gate_up_bias, layer, Product::gate_up,
                 rows);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  const bool kept = !t.stats.empty();  // a backward follows, which reads gate_up
  if (kept || adapted(layer, Product::gate_up, rows)) {
    block_forward_kept(x, layer, rows, t);
    kernels::swiglu_forward(t.act, t.gate_up, *rows.stream);
  } else {
    attention_half(x, layer, rows, t);
    kernels::normed_swiglu_forward(t.act, t.gate_up, t.norm, feed_forward_input(rows, w, t), w.gate_up,
                                   w.gate_up_bias.view(), *rows.stream);
  }
  product(y, t.act, w.down, w.down_bias, t.mid, layer, Product::down, rows);
}

}  // namespace lockstep::model
