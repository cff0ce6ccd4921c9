#include "rl/reference.h"

#include "train/dealt_rows.h"

namespace lockstep::rl {

void set_ref_logprobs(std::span<train::Datum> datums, train::Trainer& actor, const train::Progress& between,
                      const lora::AdapterVersion* reference, parallel::Group* group) {
  auto logprobs = train::dealt_rows(
      group, datums, [&](std::span<const train::Datum> share) { return actor.logprobs(share, reference, between); });
  for (size_t i = 0; i < datums.size(); ++i) datums[i].ref_logprobs = std::move(logprobs[i]);
}

std::optional<double> mean_kl(std::span<const train::Datum> datums, bool per_token, train::KlType type) {
  double sum = 0, weight = 0;
  for (const train::Datum& datum : datums) {
    const double rows = datum.weight_sum();
    if (rows == 0) continue;
    double of_sample = 0;
    for (size_t t = 0; t < datum.weights.size(); ++t)
      if (datum.weights[t] != 0) of_sample += train::kl_estimate(type, datum.policy_logprobs[t], datum.ref_logprobs[t]);
    sum += per_token ? of_sample : of_sample / rows;
    weight += per_token ? rows : 1;
  }
  return weight > 0 ? std::optional(sum / weight) : std::nullopt;
}

}  // namespace lockstep::rl
