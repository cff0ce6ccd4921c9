#include <algorithm>
#include <cmath>

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

// The sum over the candidates as it is, before it is bounded. d of each is written: -p, 0 where l is at its bound.
double forward_kl(const DistillTerm& term, const Row& row, const SampleRows& rows, std::span<float> d, double weight) {
  const int64_t own = row.datum.num_candidates(), stride = static_cast<int64_t>(d.size());
  double sum = 0;
  for (int64_t i = 0; i < own; ++i) {
    if (row.datum.candidates[static_cast<size_t>(row.index * own + i)] < 0) continue;
    const double policy = rows.candidate_logprob[static_cast<size_t>(row.index * stride + i)];
    if (!std::isfinite(policy))
      not_finite(row, "the model's log-prob of a teacher's token is not finite", std::to_string(policy));
    const double log_p = bounded(term, teacher_logprob(row, row.index * own + i)), p = std::exp(log_p);
    const double l = bounded(term, policy);
    sum += p * (log_p - l);
    d[static_cast<size_t>(i)] = static_cast<float>(l == policy ? -weight * p : 0);
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
  if (sum >= 0 && (most <= 0 || sum <= most)) return {.value = sum};
  std::ranges::fill(d, 0.0f);
  return {.value = sum < 0 ? 0 : most};
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
  if (!(term.coef >= 0) || !(term.max_value >= 0) || !(term.min_logprob <= 0))
    throw ConfigError({.what = "impossible bounds of a distillation loss",
                       .where = "PolicyLoss::distill",
                       .got = "coef " + std::to_string(term.coef) + ", max_value " + std::to_string(term.max_value) +
                              ", min_logprob " + std::to_string(term.min_logprob),
                       .wanted = "coef and max_value >= 0, min_logprob <= 0"});
  if (term.kind == DistillKind::estimator && term.estimator == KlType::k1)
    throw ConfigError({.what = "the gradient of k1 does not know the teacher",
                       .where = "PolicyLoss::distill",
                       .wanted = "k2, k3, low_var_kl, abs or forward_kl_topk"});
}

}  // namespace lockstep::train
