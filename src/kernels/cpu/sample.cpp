#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels::cpu {
namespace {

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

bool is_greedy(const SampleRow& wanted) {
  return wanted.temperature == 0 || wanted.top_k == 1;
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

int32_t draw(float* p, double total, const float* logits, int64_t vocab, const SampleRow& wanted, float u,
             const Workspace& work) {
  const bool by_k = wanted.top_k > 0 && wanted.top_k < vocab, by_p = wanted.top_p < 1;
  if (!by_k && !by_p) {
    if (wanted.min_p > 0)
      for (int64_t v = 0; v < vocab; ++v) p[v] = p[v] < wanted.min_p ? 0.0f : p[v];
    return invert_all(p, vocab, work.block_sums, u);
  }
  int64_t n = 0;
  if (by_k) {
    n = select_top_k(work.candidates, logits, vocab, wanted.top_k);
    std::sort(work.candidates, work.candidates + n, more_likely);
    total = 0;
    for (int64_t i = 0; i < n; ++i) total += p[work.candidates[i].id];
  } else {
    n = select_reachable(work.candidates, logits, p, vocab, total, wanted.top_p);
  }
  if (by_p) n = keep_top_p(work.candidates, n, p, total, wanted.top_p);
  const auto end =
      std::remove_if(work.candidates, work.candidates + n, [&](const Candidate& c) { return p[c.id] < wanted.min_p; });
  return invert_candidates(work.candidates, end - work.candidates, p, u);
}

}  // namespace

void sample_tokens(std::span<int32_t> tokens, Tensor scratch, ConstTensor logits, std::span<const SampleRow> rows,
                   Stream& stream) {
  const int64_t count = logits.shape[0], vocab = logits.shape[1];
  std::vector<float> sums(rows.size(), 1.0f);
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const float temperature = rows[begin].temperature;
    for (end = begin + 1; end < count && rows[end].temperature == temperature;) ++end;
    if (temperature == 0) continue;
    softmax_unnormalized(scratch.rows(begin, end), Tensor(sums.data() + begin, DType::f32, {end - begin}),
                         logits.rows(begin, end), 1.0f / temperature, stream);
  }
  stream.parallel(count, [&](int64_t row, int worker) {
    const SampleRow& wanted = rows[row];
    const float* logit_row = logits.row(row);
    int32_t token = -1;
    if (is_greedy(wanted)) {
      token = largest(logit_row, vocab);
    } else if (std::isfinite(sums[row])) {
      const float u = uniform01(philox(wanted.seed, wanted.counter)[0]);
      token = draw(scratch.row(row), sums[row], logit_row, vocab, wanted, u,
                   Workspace(stream.scratch(worker, Workspace::bytes(vocab)), vocab));
    }
    tokens[row] = std::isfinite(sums[row]) && std::isfinite(logit_row[token]) ? token : -1;
  });
}

}  // namespace lockstep::kernels::cpu
