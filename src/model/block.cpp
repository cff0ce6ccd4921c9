#include "model/block.h"

#include "kernels/elementwise.h"
#include "model/block_parts.h"
#include "model/mlp.h"

namespace lockstep::model {

namespace {

kernels::QkNormRopeCall qk_norm_rope_call(int64_t layer, const Rows& rows, const BlockTensors& t) {
  return {.spec = qk_norm_rope_spec(layer, rows), .qk = t.qk, .rows = rows.attention};
}

AdaptedLinear qkv_layer(int64_t layer, const Rows& rows, const BlockTensors& t) {
  return adapted(weights_of(rows, layer).qkv, rows, t.h.qkv);
}
kernels::LinearCall qkv_call(const AdaptedLinear& qkv, ConstTensor x, int64_t layer, const Rows& rows,
                             const BlockTensors& t) {
  kernels::LinearCall call =
      qkv.forward(t.qkv, normed(x, weights_of(rows, layer).input_norm, t.norm, t.norm_rstd, rows));
  call.keep_y = keeps(t);
  return call;
}

// Computes the block up to its queries, and stores its keys and values.
void forward_heads(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const AdaptedLinear qkv = qkv_layer(layer, rows, t);
  kernels::QkNormRopeCall call = qk_norm_rope_call(layer, rows, t);
  call.rstd = t.qk_rstd;
  kernels::qk_norm_rope_forward(call, qkv_call(qkv, x, layer, rows, t), *rows.stream);
}

void forward_attention(int64_t layer, const Rows& rows, const BlockTensors& t) {
  kernels::attention_forward(t.att, t.stats, t.qk.cols(0, rows.config->q_width()), attention_shape(rows, layer),
                             rows.attention, *rows.stream);
}

// Does the same and then attention.
void forward_heads_and_attention(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  if (keeps(t)) {
    forward_heads(x, layer, rows, t);
    return forward_attention(layer, rows, t);
  }
  const AdaptedLinear qkv = qkv_layer(layer, rows, t);
  kernels::qk_norm_rope_attention_forward(t.att, qk_norm_rope_call(layer, rows, t), qkv_call(qkv, x, layer, rows, t),
                                          *rows.stream);
}

void forward_o(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  const AdaptedLinear o = adapted(weights_of(rows, layer).o, rows, t.h.o);
  kernels::linear(o.forward(t.mid, {.x = t.att}, x), *rows.stream);
}

}  // namespace

kernels::QkNormRopeSpec qk_norm_rope_spec(int64_t layer, const Rows& rows) {
  const LayerWeights& w = weights_of(rows, layer);
  kernels::QkNorms norms;
  if (rows.config->qk_norm)
    norms = {.q_norm = w.q_norm.view(), .k_norm = w.k_norm.view(), .eps = rows.config->norm_eps};
  return {.norms = norms, .table = *rows.rope, .positions = rows.positions, .shape = attention_shape(rows, layer)};
}

void prepare_heads(int64_t layer, const Rows& rows, const BlockTensors& t, Tensor rstd, bool store) {
  kernels::QkNormRopeCall call = qk_norm_rope_call(layer, rows, t);
  call.rstd = rstd;
  call.store = store;
  kernels::qk_norm_rope_forward(call, t.qkv, *rows.stream);
}

void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_heads_and_attention(x, layer, rows, t);
  forward_o(x, layer, rows, t);
  mlp_forward_kept(layer, rows, t);
}

void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t) {
  forward_heads_and_attention(x, layer, rows, t);
  forward_o(x, layer, rows, t);
  mlp_forward(y, layer, rows, t);
}

void block_forward_wanted(Tensor x, int64_t layer, const Rows& rows, const WantedRows& wanted, const BlockTensors& t) {
  forward_heads(x, layer, rows, t);
  const int64_t n = wanted.rows.size();
  if (n == 0) return;
  BlockTensors some;
  some.norm = some.post_norm = t.norm.rows(0, n);
  some.att = t.att.rows(0, n);
  some.mid = t.mid.rows(0, n);
  some.mlp = t.mlp.first(n);
  // The wanted rows are at most half of all rows, so their inputs fit behind their outputs in the same tensors.
  some.qk = t.att.rows(n, 2 * n);
  const Tensor y = t.mid.rows(n, 2 * n);
  // On a GPU these launches also separate the heads from attention: decode kernels fetch keys of earlier rows before
  // the kernel ahead of them has ended, and here those rows belong to this very step.
  kernels::gather_rows(some.qk, t.qk.cols(0, rows.config->q_width()), wanted.index, *rows.stream);
  kernels::gather_rows(y, x, wanted.index, *rows.stream);
  forward_attention(layer, wanted.rows, some);
  forward_o(y, layer, wanted.rows, some);
  mlp_forward(y, layer, wanted.rows, some);
  kernels::scatter_rows(x, y, wanted.index, *rows.stream);
}

}  // namespace lockstep::model
