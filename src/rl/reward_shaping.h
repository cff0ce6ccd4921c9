// Changes to rewards after grading and before advantages.
#pragma once

#include <span>
#include <vector>

#include "train/loss.h"

namespace lockstep::rl {

// KL in the reward: R - kl_coef * sum over the rows with a target of KL(policy || reference), by policy_logprobs and
// ref_logprobs; also of a sample that is masked, as its reward is in the baseline of the others. Source: verl,
// algorithm.use_kl_in_reward (token rewards are score - beta kl, and GRPO adds them up).
struct RewardShaping {
  double kl_coef = 0;  // 0: rewards stay as they are
  train::KlType kl_type = train::KlType::low_var;
};

// What row t of a datum is charged: kl_coef * KL(policy || reference).
double row_kl(const train::Datum& datum, size_t t, const RewardShaping& shaping);

// One reward per datum.
std::vector<float> shape_rewards(std::span<const float> rewards, std::span<const train::Datum> datums,
                                 const RewardShaping& shaping);

}  // namespace lockstep::rl
