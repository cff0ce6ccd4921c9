#include <cmath>
#include <string>

#include "core/error.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

void require_weight(float weight, const char* field) {
  if (weight >= 0 && std::isfinite(weight)) return;
  throw ConfigError(
      {.what = "impossible weight of KTO", .where = field, .got = std::to_string(weight), .wanted = "a number >= 0"});
}

}  // namespace

void evaluate_term(const KtoLoss& loss, const LossScale& scale, const Term& sample, LossOutput& output) {
  const Datum& datum = sample.datums[0];
  const SequenceLogprobs sums = sum_logprobs(datum, sample.sample, sample.rows[0], true);
  const double share = 1.0 / static_cast<double>(scale.num_samples), beta = loss.beta,
               score = sums.policy - sums.reference;
  const double sign = datum.desirable ? 1 : -1;
  const double weight = share * static_cast<double>(datum.desirable ? loss.desirable_weight : loss.undesirable_weight);
  // 1 - sigmoid(x) is sigmoid(-x), which loses no digits where it is small.
  const double won = sigmoid(sign * beta * (score - loss.kl)), lost = sigmoid(-sign * beta * (score - loss.kl));
  const double value = weight * lost;
  write_slopes(datum, sample.sample, sample.rows[0], value, -weight * sign * beta * won * lost);
  output.sample_losses.push_back(value);
  Metrics& metrics = output.sample_metrics.emplace_back();
  (datum.desirable ? metrics.reward_chosen : metrics.reward_rejected) = share * beta * score;
  (datum.desirable ? metrics.logp_chosen : metrics.logp_rejected) = share * sums.policy;
  metrics.desirable = datum.desirable ? share : 0;
}

void require_fields(const KtoLoss&, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_settings(const KtoLoss& loss, const LossScale& scale, size_t) {
  if (!(loss.beta > 0) || !std::isfinite(loss.beta))
    throw ConfigError({.what = "KTO needs a positive beta",
                       .where = "KtoLoss::beta",
                       .got = std::to_string(loss.beta),
                       .wanted = "a number > 0"});
  require_weight(loss.desirable_weight, "KtoLoss::desirable_weight");
  require_weight(loss.undesirable_weight, "KtoLoss::undesirable_weight");
  if (scale.per_token) throw ConfigError({.what = "KTO's loss is a mean over rows", .where = "LossScale::per_token"});
}

}  // namespace lockstep::train
