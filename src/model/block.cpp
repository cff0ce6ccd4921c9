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

// One of the block's products with its adapter: the base's chain goes on over the rank.
void product(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, const Vector& bias, int64_t layer,
             Product which, const Rows& rows) {
  kernels::linear_forward(y, x, weight, bias.view(), *rows.stream);
  lora::delta_forward(y, x, layer, which, rows.adapters, rows.dropout, *rows.arena, *rows.stream);
}

}  // namespace

Tensor heads_of(Tensor x, int64_t begin, int64_t end, const ModelConfig& config) {
  Tensor view(x.f32() + begin * config.head_dim, DType::f32, {x[0], end - begin, config.head_dim});
  view.row_stride = x.row_stride;
  return view;
}

void normalize_and_rotate(int64_t layer, const Rows& rows, const BlockTensors& t, Tensor rstd) {
  const ModelConfig& c = *rows.config;
  if (c.qk_norm) {
    const LayerWeights& w = weights_of(rows, layer);
    const int64_t heads = c.heads, all = c.heads + c.kv_heads, count = rows.size();
    const auto rstd_of = [&](int64_t begin, int64_t n) {
      return rstd.empty() ? Tensor() : Tensor(rstd.f32() + begin * count, DType::f32, {n * count});
    };
    kernels::rmsnorm_forward(heads_of(t.qk, 0, heads, c), rstd_of(0, heads), heads_of(t.qkv, 0, heads, c),
                             w.q_norm.view(), c.norm_eps, *rows.stream);
    kernels::rmsnorm_forward(heads_of(t.qk, heads, all, c), rstd_of(heads, c.kv_heads), heads_of(t.qkv, heads, all, c),
                             w.k_norm.view(), c.norm_eps, *rows.stream);
  }
  // q and k lie side by side, so one call rotates both.
  kernels::rope(t.qk, c.heads + c.kv_heads, rows.positions, *rows.rope, +1, *rows.stream);
}

void store_keys(int64_t layer, const Rows& rows, const BlockTensors& t) {
  const ModelConfig& c = *rows.config;
  const int64_t q = c.q_width(), qk = q + c.kv_width();
  kernels::kv_store(t.qk.cols(q, qk), t.qkv.cols(qk, qk + c.kv_width()), attention_shape(c, layer), rows.sequences,
                    *rows.stream);
}

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const ModelConfig& c = *rows.config;
  const LayerWeights& w = weights_of(rows, layer);
  Stream& stream = *rows.stream;
  kernels::rmsnorm_forward(t.norm, {}, x, w.input_norm.view(), c.norm_eps, stream);
  product(t.qkv, t.norm, w.qkv, w.qkv_bias, layer, Product::qkv, rows);
  normalize_and_rotate(layer, rows, t, {});
  store_keys(layer, rows, t);
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, c.q_width()), attention_shape(c, layer), rows.sequences,
                             stream);
  product(t.mid, t.att, w.o, w.o_bias, layer, Product::o, rows);
  kernels::add(t.mid, x, stream);
  kernels::rmsnorm_forward(t.norm, {}, t.mid, w.post_norm.view(), c.norm_eps, stream);
  product(t.gate_up, t.norm, w.gate_up, w.gate_up_bias, layer, Product::gate_up, rows);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const LayerWeights& w = weights_of(rows, layer);
  block_forward_kept(x, layer, rows, t);
  kernels::swiglu_forward(t.act, t.gate_up, *rows.stream);
  product(y, t.act, w.down, w.down_bias, layer, Product::down, rows);
  kernels::add(y, t.mid, *rows.stream);
}

}  // namespace lockstep::model
