// What the MLP of a block computes, keeps for backward and needs as scratch, and how much memory that is. The rest of
// the block is in block_tensors.h, which does not know what an MLP consists of. T tokens, F feed-forward.
#pragma once

#include "core/memory.h"
#include "model/spec.h"

namespace lockstep::model {

struct MlpTensors {
  Tensor gate_up;  // [T, 2F]
  Tensor act;      // [T, F]

  MlpTensors first(int64_t tokens) const { return {.gate_up = gate_up.rows(0, tokens), .act = act.rows(0, tokens)}; }
};

// Elements for one token: of what a layer keeps for its backward, of what can be computed again from that, of scratch.
inline int64_t mlp_kept(const ModelSpec& config) {
  return 2 * config.ffn;
}
inline int64_t mlp_recomputed(const ModelSpec& config) {
  return config.ffn;
}
inline int64_t mlp_scratch(const ModelSpec& config) {
  return config.ffn;
}
// Of the widest input of its linear layers.
inline int64_t mlp_width(const ModelSpec& config) {
  return config.ffn;
}

// mlp_kept and mlp_recomputed elements for each token.
inline void allocate_kept(MlpTensors& t, const ModelSpec& config, int64_t tokens, DType dtype, Arena& arena) {
  t.gate_up = arena.alloc({tokens, 2 * config.ffn}, dtype);
}
inline void allocate_recomputed(MlpTensors& t, const ModelSpec& config, int64_t tokens, DType dtype, Arena& arena) {
  t.act = arena.alloc({tokens, config.ffn}, dtype);
}

// Of backward: mlp_scratch elements for each token.
struct MlpGradient {
  Tensor d_act;  // [T, F]
};
inline void allocate_scratch(MlpGradient& g, const ModelSpec& config, int64_t tokens, DType dtype, Arena& arena) {
  g.d_act = arena.alloc({tokens, config.ffn}, dtype);
}

}  // namespace lockstep::model
