#include "model/block_tensors.h"

namespace lockstep::model {

BlockTensors inference_tensors(const ModelSpec& c, int64_t tokens, DType dtype, Arena& arena) {
  BlockTensors t;
  t.norm = t.post_norm = arena.alloc({tokens, c.width}, dtype);
  t.qkv = arena.alloc({tokens, c.qkv_width()}, dtype);
  t.qk = t.qkv.cols(0, c.q_width() + c.kv_width());
  t.att = arena.alloc({tokens, c.q_width()}, dtype);
  t.mid = arena.alloc({tokens, c.width}, dtype);
  allocate_kept(t.mlp, c, tokens, dtype, arena);
  allocate_recomputed(t.mlp, c, tokens, dtype, arena);
  return t;
}

TokenElements inference_elements(const ModelSpec& c) {
  return {.activations = 2 * c.width + c.qkv_width() + c.q_width() + mlp_kept(c) + mlp_recomputed(c)};
}

namespace {

// h of a block's linear layers: those of one adapter lie side by side, as kernels/lora.h has them.
void keep_h(BlockTensors& t, const LayerWeights& w, const lora::AdapterLayout& layout, int64_t count, DType dtype,
            Arena& arena) {
  for (const auto& [layer, h] :
       {std::pair(&w.qkv, &t.h.qkv), {&w.o, &t.h.o}, {&w.gate_up, &t.h.gate_up}, {&w.down, &t.h.down}}) {
    int64_t rank = 0;
    for (const int pair : layout.pairs_at(layer->site)) rank += layout.pairs[static_cast<size_t>(pair)].rank;
    if (rank > 0) *h = arena.alloc({count, rank}, dtype);
  }
}

}  // namespace

std::vector<BlockTensors> kept_tensors(const Model& model, const PassShape& shape, const lora::AdapterLayout* layout,
                                       DType dtype, Arena& arena) {
  const ModelSpec& c = model.config();
  const int64_t count = shape.tokens;
  BlockTensors shared;
  shared.norm = shared.post_norm = arena.alloc({count, c.width}, dtype);
  allocate_recomputed(shared.mlp, c, count, dtype, arena);
  shared.qk = arena.alloc({count, c.q_width() + c.kv_width()}, dtype);
  std::vector<BlockTensors> sets;
  for (int64_t i = 0; i < kept_sets(shape); ++i) {
    BlockTensors t = shared;
    t.qkv = arena.alloc({count, c.qkv_width()}, dtype);
    t.att = arena.alloc({count, c.q_width()}, dtype);
    t.stats = arena.alloc({count, c.heads, 2});
    t.mid = arena.alloc({count, c.width}, dtype);
    allocate_kept(t.mlp, c, count, dtype, arena);
    if (shape.recompute == Recompute::none) {
      if (i > 0) t.norm = arena.alloc({count, c.width}, dtype);
      t.post_norm = arena.alloc({count, c.width}, dtype);
      t.norm_rstd = arena.alloc({count});
      t.post_norm_rstd = arena.alloc({count});
    }
    if (keeps_activations(shape.recompute)) {
      if (i > 0) {
        allocate_recomputed(t.mlp, c, count, dtype, arena);
        t.qk = arena.alloc({count, c.q_width() + c.kv_width()}, dtype);
      }
      if (c.qk_norm) t.qk_rstd = arena.alloc({count * (c.heads + c.kv_heads)});
    }
    if (shape.kept_ranks > 0 && shape.kept_layers > 0) {  // else the one set is of layers without an adapter
      const LayerWeights& weights = model.weights().layers[static_cast<size_t>(c.layers - shape.kept_layers + i)];
      keep_h(t, weights, *layout, count, dtype, arena);
    }
    sets.push_back(t);
  }
  return sets;
}

TokenElements kept_elements(const ModelSpec& c, const PassShape& shape) {
  const int64_t sets = kept_sets(shape);
  const bool keeps_acts = keeps_activations(shape.recompute), keeps_norms = shape.recompute == Recompute::none;
  const int64_t acts = keeps_acts ? sets : 1, norms = keeps_norms ? 2 * sets : 1;
  TokenElements elements;
  elements.activations = norms * c.width + sets * (c.qkv_width() + c.q_width() + c.width + mlp_kept(c)) +
                         acts * (mlp_recomputed(c) + c.q_width() + c.kv_width()) + shape.kept_ranks;
  elements.floats = sets * 2 * c.heads;
  if (keeps_norms) elements.floats += sets * 2;
  if (keeps_acts && c.qk_norm) elements.floats += sets * (c.heads + c.kv_heads);
  return elements;
}

void allocate_scratch(BlockGradient& g, const ModelSpec& c, int64_t tokens, DType dtype, Arena& arena) {
  g.d_norm = arena.alloc({tokens, c.width}, dtype);
  allocate_scratch(g.mlp, c, tokens, dtype, arena);
  g.d_att = arena.alloc({tokens, c.q_width()}, dtype);
  g.d_qkv = arena.alloc({tokens, c.qkv_width()}, dtype);
  g.att_dot = arena.alloc({tokens, c.heads});
  g.rstd = arena.alloc({tokens});
  if (c.qk_norm) g.qk_rstd = arena.alloc({tokens * (c.heads + c.kv_heads)});
}

TokenElements gradient_elements(const ModelSpec& c) {
  return {.activations = c.width + mlp_scratch(c) + c.q_width() + c.qkv_width(),
          .floats = 1 + 2 * c.heads + c.kv_heads};
}

}  // namespace lockstep::model
