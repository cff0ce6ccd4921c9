// What a training pass holds, in bytes: the same arithmetic allocates and estimates.
#pragma once

#include "core/memory.h"
#include "model/spec.h"
#include "model/train_pass.h"

namespace lockstep::model {

struct PassShape {
  int64_t tokens = 0;  // rows that are computed
  int64_t rows = 0;    // of the batch: these and those that are shared
  int64_t kv_blocks = 0;
  int64_t target_rows = 0;
  int64_t kept_layers = 0;  // the lowest adapted layer and all above
  int64_t logits_rows = 0;  // of the largest logits buffer
  int64_t max_rank = 0;     // of the adapter's pairs, and of first values that are subtracted as much again
  // Outputs of the largest layer with a factor (DoRA): their gradient, and gates and ups beside it, are copied.
  int64_t scaled_outputs = 0, scaled_logits = 0;
  bool keep_logits = false;  // one buffer from forward to backward; otherwise a chunk at a time, twice
  bool fused_head = false;   // kernels/linear_logprob.h: softmax's weights, as activations, instead of logits
  Recompute recompute = Recompute::selective;
  int64_t kept_ranks = 0;  // of all pairs of the kept layers, where their h is kept
  bool dropout = false;
  int64_t activation_bytes = sizeof(float);          // of one activation
  int64_t gradient_blocks = 0, gradient_floats = 0;  // of the gradients' partial sums (a GPU's)
  int64_t candidates = 0;                            // tokens of a row beside its target
};

// Of all pairs, where a pass keeps what it makes of them (keeps_activations, on a GPU, without dropout).
int64_t kept_ranks(const lora::AdapterLayout& layout, Recompute recompute, bool dropout, Device device);
// What an adapter makes of max_rank and the like.
void add_adapter(PassShape& shape, const lora::AdapterLayout& layout);
// Whether log-probs come from linear_logprob, if no adapter has a part of the head.
bool fuses_head(const ModelSpec& config, const PassShape& shape, Device device);
int64_t logits_bytes(const ModelSpec& config, const PassShape& shape);  // of the largest buffer
int64_t kept_sets(const PassShape& shape);                              // sets of activations of a block
int64_t kv_layers(const ModelSpec& config, const PassShape& shape);     // whose keys and values are held at a time
int64_t kept_bytes(const ModelSpec& config, const PassShape& shape);
int64_t scratch_bytes(const ModelSpec& config, const PassShape& shape);
// Of a pass over `tokens` rows, all with a target, before there is one.
PassShape planned_shape(const ModelSpec& config, const lora::AdapterLayout& layout, int64_t tokens, Recompute recompute,
                        Device device, int64_t candidates);
// Of a forward that keeps nothing, and its head. `candidates`: other tokens of a row that are asked about, the
// likeliest ones included. fused_head as in PassShape.
int64_t score_bytes(const ModelSpec& config, int64_t tokens, int64_t kv_blocks, int64_t logits_rows,
                    int64_t activation_bytes, int64_t candidates = 0, bool fused_head = false);

// Makes `arena` one piece of at least `bytes`; lengths vary from batch to batch, and pieces grown one by one would pile
// up. No Scope of it may be alive.
void reserve(Arena& arena, int64_t bytes);

}  // namespace lockstep::model
