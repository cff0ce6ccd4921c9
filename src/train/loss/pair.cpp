#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

// sum w lp and sum w ref of one datum.
struct SequenceLogprobs {
  double policy = 0, reference = 0;
};

SequenceLogprobs sum_logprobs(const Datum& datum, int64_t sample, const SampleRows& rows) {
  SequenceLogprobs sums;
  for (int64_t t = 0; t < datum.size(); ++t) {
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], 0};
    require_row(row);
    require_finite(row, datum.ref_logprobs[t], 0);
    sums.policy += static_cast<double>(datum.weights[t]) * rows.logprob[t];
    sums.reference += static_cast<double>(datum.weights[t]) * datum.ref_logprobs[t];
  }
  return sums;
}

}  // namespace

void evaluate_pair(const DpoLoss& loss, const LossScale& scale, const PairRows& pair, LossOutput& output) {
  SequenceLogprobs sums[2];
  for (size_t side : {0, 1})
    sums[side] = sum_logprobs(pair.datums[side], pair.sample + static_cast<int64_t>(side), pair.rows[side]);
  const double beta = loss.beta, share = 2.0 / static_cast<double>(scale.num_samples);
  const double chosen = beta * (sums[0].policy - sums[0].reference);
  const double rejected = beta * (sums[1].policy - sums[1].reference);
  const double margin = chosen - rejected;
  // log1p(exp(-|m|)) does not overflow, whichever side is preferred.
  const double value = share * (std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin))));
  const double slope = share * beta / (1.0 + std::exp(margin));
  for (size_t side : {0, 1}) {
    const Datum& datum = pair.datums[side];
    for (int64_t t = 0; t < datum.size(); ++t) {
      const double weight = static_cast<double>(datum.weights[t]) * (side == 0 ? -slope : slope);
      pair.rows[side].d_logprob[t] = static_cast<float>(weight);
      if (!pair.rows[side].d_entropy.empty()) pair.rows[side].d_entropy[t] = 0;
      require_finite({datum, pair.sample + static_cast<int64_t>(side), t, 0, 0}, value, weight);
    }
  }
  output.sample_losses.insert(output.sample_losses.end(), {value, 0.0});
  output.sample_metrics.push_back({.reward_chosen = share * chosen,
                                   .reward_rejected = share * rejected,
                                   .reward_accuracy = chosen > rejected ? share : 0.0,
                                   .logp_chosen = share * sums[0].policy,
                                   .logp_rejected = share * sums[1].policy});
  output.sample_metrics.emplace_back();
}

void require_fields(const DpoLoss&, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_sensible(const DpoLoss& loss, const LossScale& scale, size_t datums) {
  if (!(loss.beta > 0) || !std::isfinite(loss.beta))
    throw ConfigError({.what = "DPO needs a positive beta",
                       .where = "DpoLoss::beta",
                       .got = std::to_string(loss.beta),
                       .wanted = "a number > 0"});
  if (scale.per_token) throw ConfigError({.what = "DPO's loss is a mean over pairs", .where = "LossScale::per_token"});
  if (datums % 2 != 0 || scale.num_samples % 2 != 0 || scale.first_sample % 2 != 0)
    throw ConfigError({.what = "a pair is cut",
                       .where = "sample " + std::to_string(scale.first_sample),
                       .got = std::to_string(datums) + " datums of " + std::to_string(scale.num_samples),
                       .wanted = "chosen and rejected, one after the other, in one call"});
}

}  // namespace lockstep::train
