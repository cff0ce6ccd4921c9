#include "model/train_memory.h"

#include <algorithm>

#include "model/model.h"
#include "model/train_pass.h"

namespace lockstep::model {

namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignmentPerTensor = 64;
constexpr int64_t kTensorsPerLayer = 8;
constexpr int64_t kBookkeepingPerToken = 64;  // positions, target rows, outputs

// Floats per token that one block keeps for its backward.
int64_t layer_floats(const ModelConfig& c) {
  return c.qkv_width() + c.q_width() + 2 * c.heads + c.width + 2 * c.ffn;
}

}  // namespace

int64_t kept_bytes(const ModelConfig& c, const PassShape& s) {
  const int64_t sets = s.recompute ? 1 : s.kept_layers;
  int64_t per_token = (s.kept_layers + 1) * c.width + sets * layer_floats(c) + c.width + c.ffn;
  if (c.qk_norm) per_token += c.q_width() + c.kv_width();
  int64_t floats = s.tokens * per_token + s.kv_blocks * 2 * c.kv_width() * kernels::kKvBlock;
  floats += s.target_rows * (2 * c.width + 4);
  if (s.keep_logits) floats += s.logits_rows * c.vocab_size;
  const int64_t pointers = s.kv_blocks * static_cast<int64_t>(sizeof(float*)) + s.tokens * kBookkeepingPerToken;
  return floats * kFloat + pointers + (s.kept_layers + 4) * kTensorsPerLayer * kAlignmentPerTensor;
}

int64_t scratch_bytes(const ModelConfig& c, const PassShape& s) {
  int64_t per_token = 2 * c.width + c.ffn + c.q_width() + c.qkv_width() + 1 + c.heads + c.kv_heads + 2 * s.max_rank;
  if (s.dropout) per_token += 2 * std::max({c.width, c.ffn, c.q_width()});
  int64_t floats = s.tokens * per_token + s.target_rows * (c.width + 2);
  if (!s.keep_logits) floats += s.logits_rows * c.vocab_size;
  return floats * kFloat + 4 * kTensorsPerLayer * kAlignmentPerTensor;
}

int64_t score_bytes(const ModelConfig& c, int64_t tokens, int64_t kv_blocks, int64_t logits_rows) {
  const int64_t per_token = 3 * c.width + c.qkv_width() + c.q_width() + 3 * c.ffn;
  const int64_t rows = std::min(tokens, logits_rows);
  const int64_t floats =
      tokens * per_token + kv_blocks * 2 * c.kv_width() * kernels::kKvBlock + rows * (c.width + c.vocab_size + 3);
  return floats * kFloat + kv_blocks * static_cast<int64_t>(sizeof(float*)) + tokens * kBookkeepingPerToken +
         4 * kTensorsPerLayer * kAlignmentPerTensor;
}

void reserve(Arena& arena, int64_t bytes) {
  if (static_cast<int64_t>(arena.capacity_bytes()) >= bytes) return;
  arena.release();
  const Arena::Scope scope(arena);
  arena.alloc_bytes(static_cast<size_t>(bytes));
}

int64_t TrainPass::activation_bytes(const ModelConfig& config, int64_t tokens, bool recompute) {
  const int64_t fitting = std::max<int64_t>(1, Model::kLogitsBytes / (config.vocab_size * kFloat));
  const PassShape shape{.tokens = tokens,
                        .kv_blocks = (tokens + kernels::kKvBlock - 1) / kernels::kKvBlock + 1,
                        .target_rows = tokens,
                        .kept_layers = config.layers,
                        .logits_rows = std::min(tokens, fitting),
                        .max_rank = 0,
                        .keep_logits = tokens <= fitting,
                        .recompute = recompute,
                        .dropout = false};
  return kept_bytes(config, shape) + scratch_bytes(config, shape);
}

}  // namespace lockstep::model
