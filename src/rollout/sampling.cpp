#include "rollout/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/logprob.h"

namespace lockstep::rollout {
namespace {

// The exponent of logits / temperature must stay a number.
constexpr float kLeastTemperature = 1e-5f, kMostTemperature = 1e5f;

// Entries per partial sum of the cumulative distribution: a draw adds V numbers in independent lanes, then walks only
// one block.
constexpr int64_t kSumBlock = 512;
constexpr int kSumLanes = 8;

struct alignas(double) Candidate {
  float logit;
  int32_t id;
};
bool more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Worker memory of one draw: V candidates, then one partial sum per block.
struct Workspace {
  Candidate* candidates;
  double* block_sums;

  static size_t bytes(int64_t vocab) {
    const auto blocks = static_cast<size_t>((vocab + kSumBlock - 1) / kSumBlock);
    return static_cast<size_t>(vocab) * sizeof(Candidate) + blocks * sizeof(double);
  }
  Workspace(void* memory, int64_t vocab)
      : candidates(static_cast<Candidate*>(memory)), block_sums(reinterpret_cast<double*>(candidates + vocab)) {}
};

bool is_greedy(const SamplingParams& params) {
  return params.temperature == 0 || params.top_k == 1;
}

int32_t largest(const float* logits, int64_t vocab) {
  int64_t best = 0;
  for (int64_t v = 1; v < vocab; ++v)
    if (logits[v] > logits[best]) best = v;
  return static_cast<int32_t>(best);
}

// The k most likely tokens, unordered. Keeps a buffer of at most max(2k, 256) and a bar that only rises, so most tokens
// cost one comparison.
int64_t select_top_k(Candidate* kept, const float* logits, int64_t vocab, int64_t k) {
  const int64_t room = std::min(vocab, std::max<int64_t>(2 * k, 256));
  int64_t n = 0;
  float bar = -std::numeric_limits<float>::infinity();
  const auto shrink = [&] {
    std::nth_element(kept, kept + (k - 1), kept + n, more_likely);
    n = k;
    bar = kept[k - 1].logit;
  };
  for (int64_t v = 0; v < vocab; ++v) {
    // Ids rise, so an equal of the k-th best loses to it.
    if (logits[v] <= bar) continue;
    if (n == room) shrink();
    kept[n++] = {logits[v], static_cast<int32_t>(v)};
  }
  if (n > k) shrink();
  return n;
}

// Tokens that top-p can reach: those below (1 - top_p) S / V together weigh less than what may be dropped.
int64_t select_reachable(Candidate* kept, const float* logits, const float* p, int64_t vocab, double total,
                         float top_p) {
  const double bar = (1.0 - top_p) * total / static_cast<double>(vocab);
  int64_t n = 0;
  for (int64_t v = 0; v < vocab; ++v)
    if (p[v] >= bar) kept[n++] = {logits[v], static_cast<int32_t>(v)};
  return n;
}

// Shortest prefix of the candidates, most likely first, that weighs top_p of `total`. Sorts only as far as it must
// look.
int64_t keep_top_p(Candidate* candidates, int64_t n, const float* p, double total, float top_p) {
  const double wanted = top_p * total;
  double sum = 0;
  for (int64_t sorted = 0, next = 64; sorted < n; next *= 4) {
    const int64_t end = std::min(n, next);
    if (end < n) std::nth_element(candidates + sorted, candidates + end, candidates + n, more_likely);
    std::sort(candidates + sorted, candidates + end, more_likely);
    for (; sorted < end; ++sorted) {
      sum += p[candidates[sorted].id];
      if (sum >= wanted) return sorted + 1;
    }
  }
  return n;
}

int32_t invert_candidates(Candidate* candidates, int64_t n, const float* p, float u) {
  std::sort(candidates, candidates + n, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += p[candidates[i].id];
  const double target = u * total;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += p[candidates[i].id];
    if (sum > target) return candidates[i].id;
  }
  return candidates[n - 1].id;
}

double block_sum(const float* p, int64_t n) {
  double lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += p[i + lane];
  for (; i < n; ++i) lanes[0] += p[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

int32_t invert_all(const float* p, int64_t vocab, double* block_sums, float u) {
  const int64_t blocks = (vocab + kSumBlock - 1) / kSumBlock;
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    block_sums[b] = block_sum(p + b * kSumBlock, std::min(kSumBlock, vocab - b * kSumBlock));
    total += block_sums[b];
  }
  const double target = u * total;
  double sum = 0;
  int64_t block = 0;
  while (block + 1 < blocks && sum + block_sums[block] <= target) sum += block_sums[block++];
  // A block's sum and this walk round differently, so the walk may end without passing the target: then the last token
  // that has any probability is the one.
  int64_t last = block * kSumBlock;
  for (int64_t v = last, end = std::min(vocab, last + kSumBlock); v < end; ++v) {
    if (p[v] <= 0) continue;
    last = v;
    sum += p[v];
    if (sum > target) break;
  }
  return static_cast<int32_t>(last);
}

int32_t draw(float* p, double total, const float* logits, int64_t vocab, const SamplingParams& params, float u,
             const Workspace& work) {
  const bool by_k = params.top_k > 0 && params.top_k < vocab, by_p = params.top_p < 1;
  if (!by_k && !by_p) {
    if (params.min_p > 0)
      for (int64_t v = 0; v < vocab; ++v) p[v] = p[v] < params.min_p ? 0.0f : p[v];
    return invert_all(p, vocab, work.block_sums, u);
  }
  int64_t n = 0;
  if (by_k) {
    n = select_top_k(work.candidates, logits, vocab, params.top_k);
    std::sort(work.candidates, work.candidates + n, more_likely);
    total = 0;
    for (int64_t i = 0; i < n; ++i) total += p[work.candidates[i].id];
  } else {
    n = select_reachable(work.candidates, logits, p, vocab, total, params.top_p);
  }
  if (by_p) n = keep_top_p(work.candidates, n, p, total, params.top_p);
  const auto end =
      std::remove_if(work.candidates, work.candidates + n, [&](const Candidate& c) { return p[c.id] < params.min_p; });
  return invert_candidates(work.candidates, end - work.candidates, p, u);
}

void require(bool ok, const char* field, const std::string& got, const char* wanted) {
  if (!ok) throw ConfigError({.what = "impossible sampling parameter", .where = field, .got = got, .wanted = wanted});
}

bool is_temperature(float t) {
  return t >= kLeastTemperature && t <= kMostTemperature;
}

void require_rows(size_t got, int64_t rows, const char* argument) {
  if (static_cast<int64_t>(got) != rows)
    throw ShapeError({.what = "one entry per row of logits",
                      .where = std::string("sample_tokens: ") + argument,
                      .got = std::to_string(got),
                      .wanted = std::to_string(rows)});
}

}  // namespace

void validate(const SamplingParams& params) {
  const auto text = [](auto value) { return fmt::format("{}", value); };
  require(params.temperature == 0 || is_temperature(params.temperature), "temperature", text(params.temperature),
          "0 (greedy), or 1e-5 to 1e5");
  require(params.top_p > 0 && params.top_p <= 1, "top_p", text(params.top_p), "above 0, at most 1");
  require(params.top_k >= -1, "top_k", text(params.top_k), "-1 or 0 (all), or a count");
  require(params.min_p >= 0 && params.min_p <= 1, "min_p", text(params.min_p), "0 to 1");
  require(params.max_tokens >= 1, "max_tokens", text(params.max_tokens), "at least 1");
  require(is_temperature(params.logprob_temperature), "logprob_temperature", text(params.logprob_temperature),
          "1e-5 to 1e5");
  for (const std::string& stop : params.stop) require(!stop.empty(), "stop", "an empty string", "text to stop at");
}

void sample_tokens(std::span<int32_t> tokens, Tensor probabilities, ConstTensor logits,
                   std::span<const SamplingParams* const> params, std::span<const Counter> counters, Stream& stream) {
  const int64_t rows = logits.shape[0], vocab = logits.rank == 2 ? logits.shape[1] : 0;
  if (vocab < 1)
    throw ShapeError(
        {.what = "wrong shape", .where = "sample_tokens: logits", .got = shape_text(logits), .wanted = "f32 [R, V]"});
  require_f32(logits, {rows, vocab}, "sample_tokens", "logits");
  require_f32(probabilities, {rows, vocab}, "sample_tokens", "probabilities");
  require_rows(tokens.size(), rows, "tokens");
  require_rows(params.size(), rows, "params");
  require_rows(counters.size(), rows, "counters");

  std::vector<float> sums(static_cast<size_t>(rows), 1.0f);
  for (int64_t begin = 0, end = 0; begin < rows; begin = end) {
    const float temperature = params[begin]->temperature;
    for (end = begin + 1; end < rows && params[end]->temperature == temperature;) ++end;
    if (temperature == 0) continue;
    kernels::softmax_unnormalized(probabilities.rows(begin, end),
                                  Tensor(sums.data() + begin, DType::f32, {end - begin}), logits.rows(begin, end),
                                  1.0f / temperature, stream);
  }
  stream.parallel(rows, [&](int64_t row, int worker) {
    const SamplingParams& wanted = *params[row];
    const float* logit_row = logits.row(row);
    if (is_greedy(wanted)) {
      tokens[row] = largest(logit_row, vocab);
    } else if (std::isfinite(sums[row])) {
      const float u = uniform01(philox(wanted.seed, counters[row])[0]);
      tokens[row] = draw(probabilities.row(row), sums[row], logit_row, vocab, wanted, u,
                         Workspace(stream.scratch(worker, Workspace::bytes(vocab)), vocab));
    }
    if (!std::isfinite(sums[row]) || !std::isfinite(logit_row[tokens[row]]))
      throw DataError({.what = "logits are not finite",
                       .where = fmt::format("row {} of a batch to sample", row),
                       .attempt = "check the adapter: a diverged training run leaves such weights"});
  });
}

}  // namespace lockstep::rollout
