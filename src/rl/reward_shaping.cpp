#include "rl/reward_shaping.h"

namespace lockstep::rl {

double row_kl(const train::Datum& datum, size_t t, const RewardShaping& shaping) {
  if (shaping.kl_coef == 0) return 0;
  return shaping.kl_coef * train::kl_estimate(shaping.kl_type, datum.policy_logprobs[t], datum.ref_logprobs[t]);
}

std::vector<float> shape_rewards(std::span<const float> rewards, std::span<const train::Datum> datums,
                                 const RewardShaping& shaping) {
  std::vector<float> shaped(rewards.begin(), rewards.end());
  if (shaping.kl_coef == 0) return shaped;
  for (size_t i = 0; i < shaped.size(); ++i) {
    const train::Datum& datum = datums[i];
    double kl = 0;
    for (size_t t = 0; t < datum.targets.size(); ++t)
      if (datum.targets[t] >= 0)
        kl += train::kl_estimate(shaping.kl_type, datum.policy_logprobs[t], datum.ref_logprobs[t]);
    shaped[i] = static_cast<float>(shaped[i] - shaping.kl_coef * kl);
  }
  return shaped;
}

}  // namespace lockstep::rl
