#include "rollout/local/token_sampler.h"

#include <algorithm>
#include <numeric>

#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/token_logprobs.h"
#include "kernels/top_logprobs.h"

namespace lockstep::rollout {
namespace {

std::span<int32_t> int_memory(int64_t count, Arena& arena) {
  return {static_cast<int32_t*>(arena.alloc({count}, DType::i32).data), static_cast<size_t>(count)};
}

bool same_report(const Draw& a, const Draw& b) {
  return a.logprob_temperature == b.logprob_temperature && a.top_logprobs == b.top_logprobs;
}

// The most likely tokens of one row; the one whose log-prob is known exactly has it here too.
std::vector<TopLogprob> top_of_row(const int32_t* tokens, const float* logprobs, int64_t count, int32_t token,
                                   float logprob) {
  std::vector<TopLogprob> top(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    top[static_cast<size_t>(i)] = {tokens[i], tokens[i] == token ? logprob : logprobs[i]};
  return top;
}

}  // namespace

std::span<const Drawn> TokenSampler::draw(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena) {
  // Logits, their copies for the samples of one prompt, edited ones and probabilities together stay within the model's
  // bound.
  const auto most = static_cast<size_t>(std::max<int64_t>(1, model_.logits_rows() / 4));
  drawn_.clear();
  for (size_t begin = 0; begin < draws.size(); begin += most)
    draw_chunk(draws.subspan(begin, std::min(most, draws.size() - begin)), hidden, arena);
  return drawn_;
}

// Logits of every draw. Samples of one prompt draw their first token from the same row: the head runs once for them.
Tensor TokenSampler::draw_logits(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena) {
  const int64_t vocab = model_.config().vocab_size;
  std::vector<int32_t> rows, copies;
  for (size_t i = 0; i < draws.size(); ++i) {
    if (i == 0 || draws[i].row != draws[i - 1].row) rows.push_back(static_cast<int32_t>(draws[i].row));
    copies.push_back(static_cast<int32_t>(rows.size()) - 1);
  }
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor distinct = arena.alloc({count, hidden.values[1]}, hidden.values.dtype);
  const Tensor logits = arena.alloc({count, vocab});
  kernels::gather_rows(distinct, hidden.values, upload(std::span<const int32_t>(rows), arena, stream_), stream_);
  model_.logits(logits, distinct,
                {.rows = model::adapters_of_rows(hidden.adapters.rows, rows), .tiles = {}, .dropout = {}}, arena,
                stream_);
  if (rows.size() == draws.size()) return logits;
  const Tensor all = arena.alloc({static_cast<int64_t>(draws.size()), vocab});
  kernels::gather_rows(all, logits, upload(std::span<const int32_t>(copies), arena, stream_), stream_);
  return all;
}

// What the tokens are drawn from: the logits themselves, or a copy of them when some row changes its own.
Tensor TokenSampler::edited(ConstTensor logits, std::span<const Draw> draws, Arena& arena) {
  edits_.clear();
  for (size_t i = 0; i < draws.size(); ++i)
    if (draws[i].changes) draws[i].changes->append(static_cast<int32_t>(i), edits_);
  if (edits_.empty()) return {};
  std::vector<int32_t> all(draws.size());
  std::iota(all.begin(), all.end(), 0);
  const Tensor copy = arena.alloc({logits[0], logits[1]});
  kernels::gather_rows(copy, logits, upload(std::span<const int32_t>(all), arena, stream_), stream_);
  kernels::edit_logits(copy, upload(std::span<const kernels::LogitEdit>(edits_), arena, stream_), stream_);
  return copy;
}

void TokenSampler::draw_chunk(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena) {
  const Arena::Scope scope(arena);
  const auto count = static_cast<int64_t>(draws.size());
  const Tensor logits = draw_logits(draws, hidden, arena), copy = edited(logits, draws, arena);
  const std::span<int32_t> tokens = int_memory(count, arena);
  rows_.clear();
  for (const Draw& draw : draws) rows_.push_back(draw.how);
  kernels::sample_tokens(tokens, kernels::sample_scratch(count, logits[1], arena), copy.empty() ? logits : copy,
                         upload(std::span<const kernels::SampleRow>(rows_), arena, stream_), stream_);
  tokens_.resize(draws.size());
  download(tokens_.data(), tokens.data(), tokens.size_bytes(), stream_);
  for (size_t begin = 0, end = 0; begin < draws.size(); begin = end) {
    for (end = begin + 1; end < draws.size() && same_report(draws[begin], draws[end]);) ++end;
    report(draws.subspan(begin, end - begin), static_cast<int64_t>(begin), logits, tokens, arena);
  }
}

// Log-probs of the rows from `begin` on, which are all reported alike.
void TokenSampler::report(std::span<const Draw> draws, int64_t begin, ConstTensor all_logits,
                          std::span<const int32_t> all_tokens, Arena& arena) {
  const auto count = static_cast<int64_t>(draws.size());
  const int64_t top = std::min(draws.front().top_logprobs, all_logits[1]);
  const float inv_temperature = 1.0f / draws.front().logprob_temperature;
  const ConstTensor logits = all_logits.rows(begin, begin + count);
  const auto tokens = all_tokens.subspan(static_cast<size_t>(begin), draws.size());
  const Tensor logprobs = arena.alloc({count}), lse = arena.alloc({count});
  kernels::logprob_forward(logprobs, {}, lse, logits, tokens, inv_temperature, stream_);
  kernels::TopLogprobs wanted;
  if (top > 0) {
    wanted = {.tokens = int_memory(count * top, arena), .logprobs = arena.alloc({count, top})};
    kernels::top_logprobs(wanted, logits, lse, {}, inv_temperature, stream_);
    top_tokens_.resize(wanted.tokens.size());
    top_logprobs_.resize(wanted.tokens.size());
    download(top_tokens_.data(), wanted.tokens.data(), wanted.tokens.size_bytes(), stream_);
    download(top_logprobs_.data(), wanted.logprobs.data, wanted.tokens.size() * sizeof(float), stream_);
  }
  logprobs_.resize(draws.size());
  download(logprobs_.data(), logprobs.data, draws.size() * sizeof(float), stream_);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = tokens_[static_cast<size_t>(begin + i)];
    const float logprob = logprobs_[static_cast<size_t>(i)];
    drawn_.push_back({.token = token, .logprob = logprob});
    if (top > 0)
      drawn_.back().top = top_of_row(top_tokens_.data() + i * top, top_logprobs_.data() + i * top, top, token, logprob);
  }
}

// Of each row, candidate by candidate.
std::vector<float> TokenSampler::candidate_logprobs(ConstTensor logits, ConstTensor lse, const Scoring& asked,
                                                    Arena& arena) {
  const int64_t rows = logits[0], each = static_cast<int64_t>(asked.candidates.size());
  std::vector<float> logprobs(static_cast<size_t>(rows * each));
  if (each == 0) return logprobs;
  std::vector<int32_t> tokens;
  for (int64_t row = 0; row < rows; ++row)
    tokens.insert(tokens.end(), asked.candidates.begin(), asked.candidates.end());
  const Tensor out = arena.alloc({rows, each});
  kernels::token_logprobs_forward(out, logits, lse, upload(std::span<const int32_t>(tokens), arena, stream_),
                                  1.0f / asked.temperature, stream_);
  download(logprobs.data(), out.data, logprobs.size() * sizeof(float), stream_);
  return logprobs;
}

void TokenSampler::score(const HiddenRows& hidden, std::span<const int32_t> targets, const Scoring& asked, Arena& arena,
                         std::vector<PromptLogprob>& scores) {
  const int64_t top = asked.top;
  const float temperature = asked.temperature;
  const int64_t vocab = model_.config().vocab_size, most = std::max<int64_t>(1, model_.logits_rows());
  const int64_t kept = std::clamp<int64_t>(top, 1, vocab);  // the rank comes with the list
  const auto total = static_cast<int64_t>(targets.size());
  for (int64_t begin = 0; begin < total; begin += most) {
    const Arena::Scope scope(arena);
    const int64_t count = std::min(most, total - begin);
    const auto wanted = targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const std::span<const int32_t> tokens = upload(wanted, arena, stream_);
    const Tensor logits = arena.alloc({count, vocab}), logprobs = arena.alloc({count}), lse = arena.alloc({count});
    model_.logits(logits, hidden.values.rows(begin, begin + count), hidden.adapters.part(begin, begin + count), arena,
                  stream_);
    kernels::logprob_forward(logprobs, {}, lse, logits, tokens, 1.0f / temperature, stream_);
    const kernels::TopLogprobs out{.tokens = int_memory(count * kept, arena),
                                   .logprobs = arena.alloc({count, kept}),
                                   .ranks = int_memory(count, arena)};
    kernels::top_logprobs(out, logits, lse, tokens, 1.0f / temperature, stream_);
    logprobs_.resize(wanted.size());
    ranks_.resize(wanted.size());
    top_tokens_.resize(out.tokens.size());
    top_logprobs_.resize(out.tokens.size());
    download(logprobs_.data(), logprobs.data, wanted.size() * sizeof(float), stream_);
    download(ranks_.data(), out.ranks.data(), out.ranks.size_bytes(), stream_);
    download(top_tokens_.data(), out.tokens.data(), out.tokens.size_bytes(), stream_);
    download(top_logprobs_.data(), out.logprobs.data, out.tokens.size() * sizeof(float), stream_);
    const std::vector<float> others = candidate_logprobs(logits, lse, asked, arena);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      scores.push_back({.token = wanted[at], .logprob = logprobs_[at], .rank = ranks_[at]});
      scores.back().top = top_of_row(top_tokens_.data() + i * kept, top_logprobs_.data() + i * kept,
                                     std::min(top, kept), wanted[at], logprobs_[at]);
      const auto row = std::span(others).subspan(at * asked.candidates.size(), asked.candidates.size());
      scores.back().candidates.assign(row.begin(), row.end());
    }
  }
}

}  // namespace lockstep::rollout
