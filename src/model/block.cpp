#include "model/block.h"

#include <algorithm>

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

lora::AdapterBatch adapters_of(const Rows& rows, const BlockTensors& t, Product which) {
  lora::AdapterBatch batch(rows.adapters, rows.tiles);
  batch.h = t.h[static_cast<size_t>(which)];
  return batch;
}

// One of the block's products, the residual (or none), and of the adapter what the next op does not add.
lora::LinearDelta begin_product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias,
                                ConstTensor residual, int64_t layer, Product which, const Rows& rows,
                                const BlockTensors& t) {
  return lora::adapted_linear_begin(y, x, weight, bias.view(), residual, layer, which, adapters_of(rows, t, which),
                                    rows.dropout, *rows.arena, *rows.stream);
}

// The same, complete.
void product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias, ConstTensor residual,
             int64_t layer, Product which, const Rows& rows, const BlockTensors& t) {
  lora::adapted_linear_forward(y, x, weight, bias.view(), residual, layer, which, adapters_of(rows, t, which),
                               rows.dropout, *rows.arena, *rows.stream);
}

// Whether backward reads the block's tensors again.
bool kept(const BlockTensors& t) {
  return !t.stats.empty();
}

// Whether some row's adapter has a part in this product.
bool adapted(int64_t layer, Product which, const Rows& rows) {
  const auto has_part = [&](const lora::AdapterRows& part) {
    return part.adapter != nullptr && !part.adapter->layout->site(layer, which).empty();
  };
  return rows.tiles.num_tiles > 0 || std::any_of(rows.adapters.begin(), rows.adapters.end(), has_part);
}

// product(norm(x)). `norm` holds the norm afterwards where an adapter reads it, too.
void normed_product(Tensor y, Tensor norm, const kernels::LinearInput& input, const kernels::PackedWeight& weight,
                    const Vector& bias, int64_t layer, Product which, const Rows& rows, const BlockTensors& t) {
  if (!adapted(layer, which, rows))
    return kernels::normed_linear_forward(y, norm, input, weight, bias.view(), *rows.stream);
  kernels::rmsnorm_forward(norm, {}, input.x, input.norm_weight, input.norm_eps, *rows.stream);
  product(y, norm, weight, bias, {}, layer, which, rows, t);
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

kernels::LinearInput attention_input(ConstTensor x, const Rows& rows, const LayerWeights& w) {
  return {.x = x, .norm_weight = w.input_norm.view(), .norm_eps = rows.config->norm_eps};
}
kernels::LinearInput feed_forward_input(ConstTensor mid, const Rows& rows, const LayerWeights& w) {
  return {.x = mid, .norm_weight = w.post_norm.view(), .norm_eps = rows.config->norm_eps};
}

// The block's first product. Returns what t.qkv lacks.
lora::LinearDelta forward_qkv(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  const kernels::LinearInput input = attention_input(x, rows, w);
  if (!adapted(layer, Product::qkv, rows)) {
    kernels::normed_linear_forward(t.qkv, t.norm, input, w.qkv, w.qkv_bias.view(), *rows.stream);
    return {};
  }
  kernels::rmsnorm_forward(t.norm, {}, input.x, input.norm_weight, input.norm_eps, *rows.stream);
  return begin_product(t.qkv, t.norm, w.qkv, w.qkv_bias, {}, layer, Product::qkv, rows, t);
}

// The block up to its queries; keys and values are stored.
void forward_heads(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const Arena::Scope scope(*rows.arena);
  const lora::LinearDelta delta = forward_qkv(x, layer, rows, t);
  kernels::heads_forward(t.qk, t.qk_rstd, t.qkv, delta.get(), kept(t), head_norms(*rows.config, weights_of(rows, layer)),
                         *rows.rope, rows.positions, attention_shape(rows, layer), rows.attention, true, *rows.stream);
}

void forward_attention(int64_t layer, const Rows& rows, const BlockTensors& t) {
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, rows.config->q_width()), attention_shape(rows, layer),
                             rows.attention, *rows.stream);
}

// The same and attention.
void forward_heads_and_attention(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  if (kept(t)) {
    forward_heads(x, layer, rows, t);
    return forward_attention(layer, rows, t);
  }
  const Arena::Scope scope(*rows.arena);
  const lora::LinearDelta delta = forward_qkv(x, layer, rows, t);
  kernels::heads_attention_forward(t.att, t.qk, t.qkv, delta.get(), head_norms(*rows.config, weights_of(rows, layer)),
                                   *rows.rope, rows.positions, attention_shape(rows, layer), rows.attention,
                                   *rows.stream);
}

void forward_o(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  product(t.mid, t.att, w.o, w.o_bias, x, layer, Product::o, rows, t);
}

void feed_forward(Tensor y, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  Stream& stream = *rows.stream;
  const kernels::LinearInput input = feed_forward_input(t.mid, rows, w);
  if (adapted(layer, Product::gate_up, rows)) {
    kernels::rmsnorm_forward(t.norm, {}, input.x, input.norm_weight, input.norm_eps, stream);
    const Arena::Scope scope(*rows.arena);
    if (kept(t)) {
      const lora::LinearDelta delta =
          begin_product(t.gate_up, t.norm, w.gate_up, w.gate_up_bias, {}, layer, Product::gate_up, rows, t);
      kernels::swiglu_forward(t.act, t.gate_up, delta.get(), true, stream);
    } else {
      lora::adapted_swiglu_forward(t.act, t.gate_up, t.norm, w.gate_up, w.gate_up_bias.view(), layer,
                                   {rows.adapters, rows.tiles}, rows.dropout, *rows.arena, stream);
    }
  } else if (kept(t)) {
    kernels::normed_linear_forward(t.gate_up, t.norm, input, w.gate_up, w.gate_up_bias.view(), stream);
    kernels::swiglu_forward(t.act, t.gate_up, stream);
  } else {
    kernels::normed_swiglu_forward(t.act, t.gate_up, t.norm, input, w.gate_up, w.gate_up_bias.view(), stream);
  }
  product(y, t.act, w.down, w.down_bias, t.mid, layer, Product::down, rows, t);
}

}  // namespace

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  forward_heads_and_attention(x, layer, rows, t);
  forward_o(x, layer, rows, t);
  normed_product(t.gate_up, t.norm, feed_forward_input(t.mid, rows, w), w.gate_up, w.gate_up_bias, layer,
                 Product::gate_up, rows, t);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_heads_and_attention(x, layer, rows, t);
  forward_o(x, layer, rows, t);
  feed_forward(y, layer, rows, t);
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
  forward_attention(layer, wanted.rows, some);
  forward_o(y, layer, wanted.rows, some);
  feed_forward(y, layer, wanted.rows, some);
  kernels::scatter_rows(x, y, wanted.index, *rows.stream);
}

}  // namespace lockstep::model
