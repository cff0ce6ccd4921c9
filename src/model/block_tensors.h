// The activations and gradients of one block: what they are, who allocates which, and how much memory that is. What a
// function allocates and what the one below it counts stand side by side in block_tensors.cpp.
// T rows, D width, Q = heads * head_dim, C = kv_heads * head_dim, H heads.
#pragma once

#include <vector>

#include "core/memory.h"
#include "model/mlp_tensors.h"
#include "model/model.h"
#include "model/train_memory.h"

namespace lockstep::model {

// Inference reuses one set for all layers, training keeps one per layer.
struct BlockTensors {
  Tensor norm;       // [T, D]          n1, input of qkv
  Tensor qkv;        // [T, Q + 2C]     q and k before norm and rope when `qk` lies elsewhere
  Tensor qk;         // [T, Q + C]      after norm and rope: columns of qkv, or memory of its own
  Tensor att;        // [T, Q]
  Tensor stats;      // [T, H, 2] f32   empty when no backward follows
  Tensor mid;        // [T, D]
  Tensor post_norm;  // [T, D]      n2, input of the MLP; the memory of n1 where backward computes both again
  MlpTensors mlp;

  // What backward reads instead of computing it again, or empty.
  Tensor norm_rstd = {}, post_norm_rstd = {};  // [T] f32 of n1 and n2, which are kept then
  Tensor qk_rstd = {};                         // [T * (H + C)] f32 of q, then of k
  struct OfLinears {
    Tensor qkv, o, gate_up, down;  // x A of each layer's adapter (kernels::LinearAdapters::h)
  } h = {};
};

// Of backward, for one block at a time.
struct BlockGradient {
  Tensor d;       // [T, D]: gradient of the block's output; becomes that of its input
  Tensor d_norm;  // [T, D]       scratch, as the rest
  MlpGradient mlp;
  Tensor d_att;                // [T, Q]
  Tensor d_qkv;                // [T, Q + 2C]
  Tensor rstd;                 // [T] f32
  Tensor qk_rstd;              // [T * H] of q, then [T * kv_heads] of k, f32, when the model has q/k norms
  Tensor att_dot;              // [T, H] f32      scratch of attention's backward
  Tensor att_score_gradients;  // memory that it may use (kernels::AttentionScratch), or empty
};

// Elements of memory for one token.
struct TokenElements {
  int64_t activations = 0;  // of the device's activation type
  int64_t floats = 0;
};

// Of a pass without backward: one set of activations, used by every layer in turn.
BlockTensors inference_tensors(const ModelSpec& config, int64_t tokens, DType dtype, Arena& arena);
TokenElements inference_elements(const ModelSpec& config);

// Of a pass with backward: kept_sets(shape) sets. `layout`: of all sequences, if it is one.
std::vector<BlockTensors> kept_tensors(const Model& model, const PassShape& shape, const lora::AdapterLayout* layout,
                                       DType dtype, Arena& arena);
TokenElements kept_elements(const ModelSpec& config, const PassShape& shape);

// Of backward: all but `d`.
void allocate_scratch(BlockGradient& gradient, const ModelSpec& config, int64_t tokens, DType dtype, Arena& arena);
TokenElements gradient_elements(const ModelSpec& config);

}  // namespace lockstep::model
