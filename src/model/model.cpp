#include "model/model.h"

#include <algorithm>
#include <utility>

#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/linear_logprob.h"
#include "kernels/logprob.h"
#include "kernels/sample.h"
#include "kernels/token_logprobs.h"
#include "kernels/top_logprobs.h"
#include "model/block.h"
#include "model/candidates.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/tensor_places.h"

namespace lockstep::model {

Model::Model(ModelSpec config, std::shared_ptr<const Weights> weights, int64_t logits_bytes, lora::BaseVersion version)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_(std::make_unique<RopeCache>(rope_frequencies(config_), config_.max_positions)),
      logits_bytes_(logits_bytes),
      version_(version) {}

kernels::AttentionShape Model::attention_shape(int64_t layer) const {
  return model::attention_shape(config_, layer);
}

int64_t Model::kv_layer_elements() const {
  return attention_shape(0).block_elements();
}

void Model::forward(Tensor hidden_TD, const RowBatch& batch, Arena& arena, Stream& stream) const {
  Arena::Scope scope(arena);
  const Rows rows = prepare_rows(batch, config_, *weights_, *rope_, arena, stream);
  const std::optional<WantedRows> wanted = few_wanted_rows(batch, config_, *weights_, *rope_, arena, stream);
  run_blocks(hidden_TD, rows, wanted ? &*wanted : nullptr, arena);
}

void Model::forward(Tensor hidden_TD, const DecodeRows& decode, Arena& arena, Stream& stream) const {
  Arena::Scope scope(arena);
  Rows rows;
  rows.config = &config_;
  rows.weights = weights_.get();
  rows.rope = rope_->covering(decode.max_positions, stream);
  rows.tokens = decode.tokens;
  rows.positions = decode.positions;
  rows.adapters.rows = {
      {.row_begin = 0, .rows = rows.size(), .adapter = decode.adapter, .rank_rows = decode.rank_rows}};
  rows.adapters.tiles = decode.tiles;
  rows.attention.device = decode.sequences;
  rows.kv_layer_stride = decode.kv_layer_stride;
  rows.arena = &arena;
  rows.stream = &stream;
  run_blocks(hidden_TD, rows, nullptr, arena);
}

void Model::run_blocks(Tensor hidden_TD, const Rows& rows, const WantedRows* wanted, Arena& arena) const {
  require_tensor(hidden_TD, rows.dtype(), {rows.size(), config_.width}, "Model::forward", "hidden");
  const BlockTensors tensors = inference_tensors(config_, rows.size(), rows.dtype(), arena);
  embed(hidden_TD, rows);
  const int64_t last = config_.layers - 1;
  for (int64_t layer = 0; layer < last; ++layer) block_forward(hidden_TD, hidden_TD, layer, rows, tensors);
  if (wanted)
    block_forward_wanted(hidden_TD, last, rows, *wanted, tensors);
  else
    block_forward(hidden_TD, hidden_TD, last, rows, tensors);
}

void Model::logits(Tensor logits_NV, ConstTensor hidden_ND, const RowAdapters& adapters, Arena& arena,
                   Stream& stream) const {
  Arena::Scope scope(arena);
  const Tensor normed = arena.alloc({hidden_ND[0], config_.width}, hidden_ND.dtype);
  const AdaptedLinear head(weights_->head_weight(), {}, kHeadSite, adapters, {}, arena);
  kernels::linear(
      head.forward(
          logits_NV,
          {.x = hidden_ND, .norm_weight = weights_->final_norm.view(), .norm_eps = config_.norm_eps, .norm = normed}),
      stream);
}

int64_t Model::logits_rows() const {
  return std::max<int64_t>(1, logits_bytes_ / (config_.vocab_size * static_cast<int64_t>(sizeof(float))));
}

namespace {

std::vector<int32_t> largest_logits(Tensor logits, Arena& arena, Stream& stream) {
  const Arena::Scope scope(arena);
  const std::vector<kernels::SampleRow> greedy(static_cast<size_t>(logits[0]), {.temperature = 0});
  const std::span<const kernels::SampleRow> rows = upload(std::span(greedy), arena, stream);
  std::vector<int32_t> tokens(greedy.size());
  const std::span<int32_t> drawn = upload(std::span<const int32_t>(tokens), arena, stream);
  kernels::sample_tokens(drawn, logits, logits, rows, stream);  // a greedy row leaves its scratch memory alone
  download(tokens.data(), drawn.data(), drawn.size_bytes(), stream);
  return tokens;
}

}  // namespace

namespace {

// What a call wants to know of other tokens than the targets.
class OtherTokens {
 public:
  // At most `step` rows are read at a time.
  OtherTokens(const Model::LogprobCall& call, const TargetRows& wanted, int64_t step, int64_t vocab, Arena& arena,
              Stream& stream)
      : call_(call), wanted_(wanted) {
    const auto rows = static_cast<int64_t>(call.targets.size());
    if (!call.candidates.empty()) {
      candidates_ = upload_candidates(call.candidates, rows, wanted, vocab, arena, stream);
      candidate_logprobs_ = arena.alloc({step, static_cast<int64_t>(call.candidates.size()) / rows});
    }
    if (!call.top_tokens.empty()) {
      top_logprobs_ = arena.alloc({step, static_cast<int64_t>(call.top_tokens.size()) / rows});
      const auto count = static_cast<size_t>(top_logprobs_.elements());
      top_tokens_ = {static_cast<int32_t*>(arena.alloc_bytes(count * sizeof(int32_t))), count};
    }
  }

  // Of the wanted rows from `begin` on.
  void read(ConstTensor logits, ConstTensor lse, int64_t begin, Stream& stream) const {
    const auto first = static_cast<size_t>(begin), n = static_cast<size_t>(logits[0]);
    const std::span<const int32_t> rows = std::span(wanted_.rows).subspan(first, n);
    if (!candidates_.empty()) {
      const auto per_row = static_cast<size_t>(candidate_logprobs_[1]);
      const Tensor values = candidate_logprobs_.rows(0, logits[0]);
      kernels::token_logprobs_forward(values, logits, lse, candidates_.subspan(first * per_row, n * per_row),
                                      call_.inv_temperature, stream);
      download_rows(call_.candidate_logprobs, values, rows, stream);
    }
    if (!top_tokens_.empty()) {
      const auto per_row = static_cast<size_t>(top_logprobs_[1]);
      const kernels::TopLogprobs top{
          .tokens = top_tokens_.first(n * per_row), .logprobs = top_logprobs_.rows(0, logits[0]), .ranks = {}};
      kernels::top_logprobs(top, logits, lse, {}, call_.inv_temperature, stream);
      download_rows(call_.top_tokens, top.tokens, rows, stream);
      download_rows(call_.top_logprobs, top.logprobs, rows, stream);
    }
  }

 private:
  const Model::LogprobCall& call_;
  const TargetRows& wanted_;
  std::span<const int32_t> candidates_;
  Tensor candidate_logprobs_, top_logprobs_;
  std::span<int32_t> top_tokens_;
};

}  // namespace

void Model::logprobs(const LogprobCall& call, Arena& arena, Stream& stream) const {
  const auto& [logprob_N, entropy_N, hidden_ND, targets, adapters, inv_temperature, greedy, candidates,
               candidate_logprobs, top_tokens, top_logprobs] = call;
  const int64_t count = static_cast<int64_t>(targets.size());
  const DType dtype = kernels::activation_dtype(stream.device());
  require_tensor(hidden_ND, dtype, {count, config_.width}, "Model::logprobs", "hidden");
  require_f32(logprob_N, {count}, "Model::logprobs", "logprob");
  if (!entropy_N.empty()) require_f32(entropy_N, {count}, "Model::logprobs", "entropy");
  const TargetRows wanted = target_rows(targets, config_.vocab_size);
  zero(logprob_N.data, static_cast<size_t>(count) * sizeof(float), stream);
  if (!entropy_N.empty()) zero(entropy_N.data, static_cast<size_t>(count) * sizeof(float), stream);
  std::ranges::fill(greedy, -1);
  std::ranges::fill(candidate_logprobs, 0.0f);
  std::ranges::fill(top_tokens, -1);
  std::ranges::fill(top_logprobs, 0.0f);
  if (wanted.size() == 0) return;

  Arena::Scope scope(arena);
  const std::span<const int32_t> all_rows = upload(std::span<const int32_t>(wanted.rows), arena, stream);
  const std::span<const int32_t> all_targets = upload(std::span<const int32_t>(wanted.targets), arena, stream);
  const int64_t step = std::min(logits_rows(), wanted.size());
  const Tensor normed = arena.alloc({step, config_.width}, dtype);
  const Tensor values = arena.alloc({4, step});
  const RowAdapters head = gather_adapters(adapters, wanted.rows, all_rows, arena, stream);
  const bool fused = greedy.empty() && candidates.empty() && top_tokens.empty() && !head.at(kHeadSite) &&
                     kernels::makes_linear_logprob(config_.vocab_size, config_.width, stream.device());
  const Tensor logits =
      arena.alloc({step, fused ? kernels::linear_logprob_sums(config_.vocab_size) : config_.vocab_size});
  const OtherTokens others(call, wanted, step, config_.vocab_size, arena, stream);
  for (int64_t begin = 0; begin < wanted.size(); begin += step) {
    const int64_t n = std::min(step, wanted.size() - begin);
    const auto rows = all_rows.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    kernels::gather_rows(normed.rows(0, n), hidden_ND, rows, stream);
    final_norm(normed.rows(0, n), {}, normed.rows(0, n), config_, *weights_, stream);
    const Tensor logprob(values.row(0), DType::f32, {n}), lse(values.row(1), DType::f32, {n});
    const Tensor entropy = entropy_N.empty() ? Tensor() : Tensor(values.row(2), DType::f32, {n});
    const auto row_targets = all_targets.subspan(static_cast<size_t>(begin), rows.size());
    if (fused) {
      kernels::linear_logprob_forward({.x = normed.rows(0, n),
                                       .weight = weights_->head_weight(),
                                       .targets = row_targets,
                                       .inv_temperature = inv_temperature,
                                       .logprob = logprob,
                                       .entropy = entropy,
                                       .lse = lse,
                                       .target_z = Tensor(values.row(3), DType::f32, {n}),
                                       .sums = logits.rows(0, n)},
                                      stream);
    } else {
      head_logits(logits.rows(0, n), normed.rows(0, n), *weights_, head.part(begin, begin + n), arena, stream);
      kernels::logprob_forward(logprob, entropy, lse, logits.rows(0, n), row_targets, inv_temperature, stream);
    }
    kernels::scatter_rows(logprob_N, logprob, rows, stream);
    if (!entropy_N.empty()) kernels::scatter_rows(entropy_N, entropy, rows, stream);
    others.read(logits.rows(0, n), lse, begin, stream);
    if (!greedy.empty()) {
      const std::vector<int32_t> largest = largest_logits(logits.rows(0, n), arena, stream);
      for (size_t i = 0; i < largest.size(); ++i)
        greedy[static_cast<size_t>(wanted.rows[static_cast<size_t>(begin) + i])] = largest[i];
    }
  }
}

}  // namespace lockstep::model
