#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "train/loss/kl.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

double teacher_logprob(const Row& row, int64_t at) {
  const double logprob = row.datum.teacher_logprobs[static_cast<size_t>(at)];
  if (!std::isfinite(logprob))
    fail(row, "a teacher's log-prob is not finite", std::to_string(logprob), "a finite number");
  return logprob;
}

double bounded(const DistillTerm& term, double logprob) {
  return term.min_logprob < 0 ? std::max(logprob, static_cast<double>(term.min_logprob)) : logprob;
}

struct Candidate {
  size_t index = 0;
  double policy = 0, teacher = 0;  // log-probs
};

std::vector<Candidate> candidates_of(const Row& row, const SampleRows& rows, size_t stride) {
  const auto own = static_cast<size_t>(row.datum.num_candidates()), at = static_cast<size_t>(row.index);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < own; ++i) {
    if (row.datum.candidates[at * own + i] < 0) continue;
    const double policy = rows.candidate_logprob[at * stride + i];
    if (!std::isfinite(policy))
      not_finite(row, "the model's log-prob of a teacher's token is not finite", std::to_string(policy));
    candidates.push_back({i, policy, teacher_logprob(row, static_cast<int64_t>(at * own + i))});
  }
  return candidates;
}

// What the tokens beside the candidates add; the slope is by the policy's probability of any candidate.
Estimate tail_kl(const DistillTerm& term, std::span<const Candidate> candidates) {
  double q = 1, r = 1;
  for (const Candidate& candidate : candidates) {
    q -= std::exp(candidate.teacher);
    r -= std::exp(candidate.policy);
  }
  if (q <= 0) return {};
  const double least = term.tail_eps;
  return {.value = q * (std::log(q) - std::log(std::max(r, least))), .slope = r > least ? q / r : 0};
}

// The sum over the candidates as it is, before it is bounded. The gradient of each is written, times weight; of a
// candidate's own term there is none where l is at its bound.
double forward_kl(const DistillTerm& term, const Row& row, const SampleRows& rows, std::span<float> d, double weight) {
  const std::vector<Candidate> candidates = candidates_of(row, rows, d.size());
  const Estimate tail = term.tail ? tail_kl(term, candidates) : Estimate{};
  double sum = tail.value;
  for (const Candidate& candidate : candidates) {
    const double log_p = bounded(term, candidate.teacher), l = bounded(term, candidate.policy), p = std::exp(log_p);
    sum += p * (log_p - l);
    const double slope = (l == candidate.policy ? -p : 0) + tail.slope * std::exp(candidate.policy);
    d[candidate.index] = static_cast<float>(weight * slope);
  }
  return sum;
}

}  // namespace

DistillRow distill_row(const DistillTerm& term, const Row& row, const SampleRows& rows, double weight) {
  const double most = term.max_value;
  if (term.kind == DistillKind::estimator) {
    const Estimate kl = estimate_kl(term.estimator, row.logprob - teacher_logprob(row, row.index));
    if (most > 0 && std::abs(kl.value) > most) return {.value = std::copysign(most, kl.value)};
    return {.value = kl.value, .slope = kl.slope};
  }
  const size_t per_row = rows.d_candidate_logprob.size() / rows.d_logprob.size();
  const std::span<float> d = rows.d_candidate_logprob.subspan(static_cast<size_t>(row.index) * per_row, per_row);
  const double sum = forward_kl(term, row, rows, d, weight);
  const double least = term.tail ? -most : 0;
  const bool too_small = sum < least && (!term.tail || most > 0), too_large = most > 0 && sum > most;
  if (!too_small && !too_large) return {.value = sum};
  std::ranges::fill(d, 0.0f);
  return {.value = too_small ? least : most};
}

void require_fields(const DistillTerm& term, const Datum& datum, int64_t sample) {
  if (term.kind == DistillKind::none) return;
  if (term.kind == DistillKind::estimator)
    return require_rows(datum, sample, "teacher_logprobs", datum.teacher_logprobs.size());
  if (datum.num_candidates() > 0 && datum.candidates.size() == datum.teacher_logprobs.size() &&
      datum.candidates.size() % datum.tokens.size() == 0)
    return;
  throw DataError(
      {.what = "a datum has the wrong number of candidate tokens",
       .where = "sample " + std::to_string(sample),
       .got = std::to_string(datum.candidates.size()) + " candidates, " +
              std::to_string(datum.teacher_logprobs.size()) + " teacher_logprobs",
       .wanted = "as many as one another, and as many for each of its " + std::to_string(datum.size()) + " tokens"});
}

void require_sensible(const DistillTerm& term) {
  if (term.kind == DistillKind::none) return;
  if (!(term.coef >= 0) || !(term.max_value >= 0) || !(term.min_logprob <= 0) || !(term.tail_eps > 0))
    throw ConfigError({.what = "impossible bounds of a distillation loss",
                       .where = "PolicyLoss::distill",
                       .got = "coef " + std::to_string(term.coef) + ", max_value " + std::to_string(term.max_value) +
                              ", min_logprob " + std::to_string(term.min_logprob) + ", tail_eps " +
                              std::to_string(term.tail_eps),
                       .wanted = "coef and max_value >= 0, min_logprob <= 0, tail_eps > 0"});
  if (term.kind == DistillKind::estimator && term.estimator == KlType::k1)
    throw ConfigError({.what = "the gradient of k1 does not know the teacher",
                       .where = "PolicyLoss::distill",
                       .wanted = "k2, k3, low_var_kl, abs or forward_kl_topk"});
}

}  // namespace lockstep::train
