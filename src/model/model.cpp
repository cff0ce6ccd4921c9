#include "model/model.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "kernels/logprob.h"
#include "model/block.h"
#include "model/head.h"

namespace lockstep::model {

namespace {

// One set of activations, used by every layer in turn.
BlockTensors inference_tensors(const ModelConfig& c, int64_t count, Arena& arena) {
  BlockTensors t;
  t.norm = arena.alloc({count, c.width});
  t.qkv = arena.alloc({count, c.qkv_width()});
  t.qk = t.qkv.cols(0, c.q_width() + c.kv_width());
  t.att = arena.alloc({count, c.q_width()});
  t.mid = arena.alloc({count, c.width});
  t.gate_up = arena.alloc({count, 2 * c.ffn});
  t.act = arena.alloc({count, c.ffn});
  return t;
}

}  // namespace

Model::Model(ModelConfig config, std::shared_ptr<const Weights> weights, int64_t logits_bytes)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_(std::make_unique<RopeCache>(rope_frequencies(config_), config_.max_positions)),
      logits_bytes_(logits_bytes) {}

kernels::AttentionShape Model::attention_shape(int64_t layer) const {
  return model::attention_shape(config_, layer);
}

int64_t Model::kv_layer_floats() const {
  return attention_shape(0).block_floats();
}

void Model::forward(Tensor hidden_TD, const RowBatch& batch, Arena& arena, Stream& stream) const {
  require_f32(hidden_TD, {static_cast<int64_t>(batch.tokens.size()), config_.width}, "Model::forward", "hidden");
  Arena::Scope scope(arena);
  const Rows rows = prepare_rows(batch, config_, *weights_, *rope_, arena, stream);
  const BlockTensors tensors = inference_tensors(config_, rows.size(), arena);
  kernels::embedding_gather(hidden_TD, weights_->embedding, batch.tokens, stream);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    block_forward(hidden_TD, hidden_TD, layer, rows, tensors);
    rows.next_layer();
  }
}

void Model::logits(Tensor logits_NV, ConstTensor hidden_ND, Arena& arena, Stream& stream) const {
  Arena::Scope scope(arena);
  const Tensor normed = arena.alloc({hidden_ND[0], config_.width});
  final_norm(normed, {}, hidden_ND, config_, *weights_, stream);
  head_logits(logits_NV, normed, *weights_, stream);
}

int64_t Model::logits_rows() const {
  return std::max<int64_t>(1, logits_bytes_ / (config_.vocab_size * static_cast<int64_t>(sizeof(float))));
}

void Model::logprobs(Tensor logprob_N, Tensor entropy_N, ConstTensor hidden_ND, std::span<const int32_t> targets,
                     float inv_temperature, Arena& arena, Stream& stream) const {
  const int64_t count = static_cast<int64_t>(targets.size());
  require_f32(hidden_ND, {count, config_.width}, "Model::logprobs", "hidden");
  require_f32(logprob_N, {count}, "Model::logprobs", "logprob");
  if (!entropy_N.empty()) require_f32(entropy_N, {count}, "Model::logprobs", "entropy");
  const TargetRows wanted = target_rows(targets, config_.vocab_size);
  std::fill_n(logprob_N.f32(), count, 0.0f);
  if (!entropy_N.empty()) std::fill_n(entropy_N.f32(), count, 0.0f);

  Arena::Scope scope(arena);
  const int64_t step = std::min(logits_rows(), wanted.size());
  const Tensor normed = arena.alloc({step, config_.width});
  const Tensor logits = arena.alloc({step, config_.vocab_size});
  const Tensor values = arena.alloc({3, step});
  for (int64_t begin = 0; begin < wanted.size(); begin += step) {
    const int64_t n = std::min(step, wanted.size() - begin);
    const std::span<const int64_t> rows(wanted.rows.data() + begin, static_cast<size_t>(n));
    gather_rows(normed, hidden_ND, rows);
    final_norm(normed.rows(0, n), {}, normed.rows(0, n), config_, *weights_, stream);
    head_logits(logits.rows(0, n), normed.rows(0, n), *weights_, stream);
    const Tensor logprob(values.row(0), DType::f32, {n}), lse(values.row(1), DType::f32, {n});
    const Tensor entropy = entropy_N.empty() ? Tensor() : Tensor(values.row(2), DType::f32, {n});
    kernels::logprob_forward(logprob, entropy, lse, logits.rows(0, n), {wanted.targets.data() + begin, rows.size()},
                             inv_temperature, stream);
    scatter_rows(logprob_N, logprob, rows);
    if (!entropy_N.empty()) scatter_rows(entropy_N, entropy, rows);
  }
}

}  // namespace lockstep::model
