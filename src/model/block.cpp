#include "model/block.h"

#include "kernels/elementwise.h"
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

// The block up to its queries; keys and values are stored.
void forward_heads(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  kernels::rmsnorm_forward(t.norm, {}, x, w.input_norm.view(), rows.config->norm_eps, *rows.stream);
  product(t.qkv, t.norm, w.qkv, w.qkv_bias, {}, layer, Product::qkv, rows);
  prepare_heads(layer, rows, t, {}, true);
}

// From attention to gate_up.
void forward_from_queries(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const ModelConfig& c = *rows.config;
  const LayerWeights& w = weights_of(rows, layer);
  Stream& stream = *rows.stream;
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, c.q_width()), attention_shape(rows, layer), rows.attention,
                             stream);
  product(t.mid, t.att, w.o, w.o_bias, x, layer, Product::o, rows);
  kernels::rmsnorm_forward(t.norm, {}, t.mid, w.post_norm.view(), c.norm_eps, stream);
  product(t.gate_up, t.norm, w.gate_up, w.gate_up_bias, {}, layer, Product::gate_up, rows);
}

void forward_down(Tensor y, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  kernels::swiglu_forward(t.act, t.gate_up, *rows.stream);
  product(y, t.act, w.down, w.down_bias, t.mid, layer, Product::down, rows);
}

}  // namespace

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_heads(x, layer, rows, t);
  forward_from_queries(x, layer, rows, t);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  block_forward_kept(x, layer, rows, t);
  forward_down(y, layer, rows, t);
}

void block_forward_wanted(Tensor x, int64_t layer, const Rows& rows, const WantedRows& wanted, const BlockTensors& t) {
  forward_heads(x, layer, rows, t);
  const int64_t n = wanted.rows.size();
  if (n == 0) return;
  BlockTensors some;
  some.norm = t.norm.rows(0, n);
  some.att = t.att.rows(0, n);
  some.mid = t.mid.rows(0, n);
  some.gate_up = t.gate_up.rows(0, n);
  some.act = t.act.rows(0, n);
  // They are at most half of the rows, so what comes in finds room behind what goes out.
  some.qk = t.att.rows(n, 2 * n);
  const Tensor y = t.mid.rows(n, 2 * n);
  // On a GPU these launches also part the heads from attention: decode kernels fetch keys of earlier rows before the
  // kernel ahead of them has ended, and here these rows are of this very step.
  kernels::gather_rows(some.qk, t.qk.cols(0, rows.config->q_width()), wanted.index, *rows.stream);
  kernels::gather_rows(y, x, wanted.index, *rows.stream);
  forward_from_queries(y, layer, wanted.rows, some);
  forward_down(y, layer, wanted.rows, some);
  kernels::scatter_rows(x, y, wanted.index, *rows.stream);
}

}  // namespace lockstep::model
