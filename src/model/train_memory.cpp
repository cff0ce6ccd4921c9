#include "model/train_memory.h"

#include <algorithm>

#include "kernels/linear_logprob.h"
#include "model/block_tensors.h"
#include "model/model.h"
#include "model/train_pass.h"

namespace lockstep::model {

namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignmentPerTensor = 256;
constexpr int64_t kTensorsPerLayer = 13, kHPerLayer = std::size(kLayerLinears);
constexpr int64_t kBookkeepingPerToken = 64;  // tokens, positions, target rows, outputs

int64_t kv_elements(const ModelSpec& c, int64_t blocks) {
  return blocks * 2 * c.kv_width() * kernels::kKvBlock;
}

}  // namespace

int64_t kept_sets(const PassShape& s) {
  return s.recompute == Recompute::full ? 1 : std::max<int64_t>(1, s.kept_layers);
}

void add_adapter(PassShape& shape, const lora::AdapterLayout& layout) {
  const int64_t factors = layout.config.subtracts_initial ? 2 : 1;
  shape.max_rank = std::max(shape.max_rank, factors * lora::largest_rank(layout));
  for (const lora::OwnTensors& own : layout.own) {
    if (own.magnitude == lora::kAbsent) continue;
    const int64_t outputs = own.module.out_begin + own.module.out;
    int64_t& largest = own.module.kind == lora::ModuleKind::head ? shape.scaled_logits : shape.scaled_outputs;
    largest = std::max(largest, outputs);
  }
}

bool fuses_head(const ModelSpec& c, const PassShape& s, Device device) {
  return s.candidates == 0 && kernels::makes_linear_logprob(c.vocab_size, c.width, device);
}

int64_t logits_bytes(const ModelSpec& c, const PassShape& s) {
  if (!s.fused_head) return s.logits_rows * c.vocab_size * kFloat;
  return s.logits_rows * (c.vocab_size * s.activation_bytes + kernels::linear_logprob_sums(c.vocab_size) * kFloat);
}

int64_t kv_layers(const ModelSpec& c, const PassShape& s) {
  return keeps_activations(s.recompute) ? c.layers : 1;
}

int64_t kept_bytes(const ModelSpec& c, const PassShape& s) {
  const TokenElements block = kept_elements(c, s);
  const int64_t per_token = (s.kept_layers + 1) * c.width + block.activations;
  const int64_t activations =
      s.tokens * per_token + kv_elements(c, s.kv_blocks * kv_layers(c, s)) + s.target_rows * 2 * c.width;
  int64_t floats = s.tokens * block.floats + s.target_rows * 5;
  floats += s.target_rows * 2 * s.candidates;  // tokens and their log-probs
  floats += (s.rows - s.tokens) * 2;           // outputs; the others count as bookkeeping
  const int64_t bookkeeping = s.kv_blocks * static_cast<int64_t>(sizeof(void*)) + s.tokens * kBookkeepingPerToken +
                              (s.keep_logits ? logits_bytes(c, s) : 0);
  return activations * s.activation_bytes + floats * kFloat + bookkeeping +
         (s.kept_layers + 4) * (kTensorsPerLayer + kHPerLayer) * kAlignmentPerTensor;
}

int64_t scratch_bytes(const ModelSpec& c, const PassShape& s) {
  const TokenElements block = gradient_elements(c);
  int64_t per_token = c.width + block.activations + 6 * s.max_rank;
  if (s.dropout) per_token += 2 * std::max({c.width, mlp_width(c), c.q_width()});
  if (s.scaled_outputs > 0) per_token += s.scaled_outputs + mlp_kept(c);
  const int64_t activations = s.tokens * per_token + s.target_rows * c.width;
  int64_t floats = s.tokens * block.floats + s.target_rows * 2 + s.gradient_blocks * s.gradient_floats;
  floats += (s.rows - s.tokens) * 2;  // their gradients
  floats += 2 * s.logits_rows * s.scaled_logits;
  if (s.candidates > 0) floats += s.target_rows * s.candidates + s.logits_rows * (s.candidates + 2);
  return activations * s.activation_bytes + floats * kFloat + s.tokens * kBookkeepingPerToken +
         (s.keep_logits ? 0 : logits_bytes(c, s)) + 6 * kTensorsPerLayer * kAlignmentPerTensor;
}

int64_t score_bytes(const ModelSpec& c, int64_t tokens, int64_t kv_blocks, int64_t logits_rows,
                    int64_t activation_bytes, int64_t candidates, bool fused_head) {
  const int64_t rows = std::min(tokens, logits_rows);
  const int64_t activations =
      tokens * (c.width + inference_elements(c).activations) + kv_elements(c, kv_blocks) + rows * c.width;
  return activations * activation_bytes +
         rows * ((fused_head ? kernels::linear_logprob_sums(c.vocab_size) : c.vocab_size) + 4) * kFloat +
         (tokens + 2 * rows) * candidates * kFloat + kv_blocks * static_cast<int64_t>(sizeof(void*)) +
         tokens * kBookkeepingPerToken + 4 * kTensorsPerLayer * kAlignmentPerTensor;
}

void reserve(Arena& arena, int64_t bytes) {
  if (static_cast<int64_t>(arena.capacity_bytes()) >= bytes) return;
  arena.release();
  const Arena::Scope scope(arena);
  arena.alloc_bytes(static_cast<size_t>(bytes));
}

int64_t kept_ranks(const lora::AdapterLayout& layout, Recompute recompute, bool dropout, Device device) {
  if (!keeps_activations(recompute) || dropout || !kernels::gains_by_kept_h(device)) return 0;
  int64_t ranks = 0;
  for (const lora::Pair& pair : layout.pairs) ranks += (pair.rank + 7) / 8 * 8;
  return ranks;
}

PassShape planned_shape(const ModelSpec& config, const lora::AdapterLayout& layout, int64_t tokens, Recompute recompute,
                        Device device, int64_t candidates) {
  const int64_t logits_bytes = Model::default_logits_bytes(device);
  const int64_t fitting = std::max<int64_t>(1, logits_bytes / (config.vocab_size * kFloat));
  PassShape shape{.tokens = tokens,
                  .rows = tokens,
                  .kv_blocks = (tokens + kernels::kKvBlock - 1) / kernels::kKvBlock + 1,
                  .target_rows = tokens,
                  .kept_layers = config.layers,
                  .logits_rows = std::min(tokens, fitting),
                  .max_rank = 0,
                  .keep_logits = tokens <= fitting,
                  .recompute = recompute,
                  .kept_ranks = kept_ranks(layout, recompute, false, device),
                  .dropout = false,
                  .activation_bytes = dtype_bytes(kernels::activation_dtype(device)),
                  .candidates = candidates};
  shape.fused_head = lora::is_plain(layout) && fuses_head(config, shape, device);
  if (!layout.own.empty() || layout.config.subtracts_initial) add_adapter(shape, layout);
  return shape;
}

int64_t TrainPass::activation_bytes(const ModelSpec& config, const lora::AdapterLayout& layout, int64_t tokens,
                                    Recompute recompute, Device device, int64_t candidates) {
  const PassShape shape = planned_shape(config, layout, tokens, recompute, device, candidates);
  return kept_bytes(config, shape) + scratch_bytes(config, shape);
}

}  // namespace lockstep::model
