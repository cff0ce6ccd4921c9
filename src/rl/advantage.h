// Advantages from rewards. R: a sample's reward; mean, std, n of its group (the samples of one prompt).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rl/reward_shaping.h"
#include "rl/trajectory.h"
#include "train/datum.h"

namespace lockstep::rl {

// Every row of a sample has the sample's advantage, but with reinforce_plus_plus, its baseline and ppo:
//   grpo        (R - mean) / (std + eps). arXiv 2402.03300 section 4.1; constants as in slime
//   dr_grpo     R - mean; its loss is divided by a constant length (train::ReductionKind). arXiv 2503.20783
//   rloo        (R - mean) n / (n - 1), R in a group of one. arXiv 2402.14740, as verl and TRL
//   max_rl      (R - mean) / mean, 0 where the mean is 0. As prime-rl
//   opo         R - sum len_i R_i / sum len_i, R in a group of one; len: rows that learn. arXiv 2505.23585, as verl
//   remax       R - baseline, the reward of a greedy sample of the prompt. arXiv 2310.10505
//   gpg         alpha (R - mean), alpha = samples / those with R != 0, of the rollout; the mean of a group of one is 0.
//               arXiv 2504.02546, as verl
//   pass_at_k   (largest R - second largest) / (std + eps) for the best sample, 0 for the others. arXiv 2503.19595, as
//               verl's grpo_passk
//   reinforce_plus_plus           G_t = r_t + gamma G_(t+1) over the rows that learn, r_t = -kl_coef KL_t, + R at the
//                                 last one; whitened. arXiv 2501.03262, as slime
//   reinforce_plus_plus_baseline  R - mean - kl_coef KL_t; whitened. The same
//   ppo         GAE of a critic's values, which the datums have (rl/advantage/gae.h); sets returns, too. arXiv
//               1707.06347, as slime and miles
//   on_policy_distillation        0: rl/teacher.h says the rest
enum class Estimator {
  grpo,
  dr_grpo,
  rloo,
  max_rl,
  opo,
  remax,
  gpg,
  pass_at_k,
  reinforce_plus_plus,
  reinforce_plus_plus_baseline,
  ppo,
  on_policy_distillation
};
const char* estimator_name(Estimator estimator);
bool has_token_rewards(Estimator estimator);  // its KL penalty is of each row, not of the whole sample
bool always_whitens(Estimator estimator);     // reinforce_plus_plus and its baseline

enum class Spread { group, batch };  // whose rewards std is of

// Of grpo, dr_grpo, max_rl and pass_at_k. Nothing is divided by std without normalize_std, in a group of one sample, or
// if all rewards of the group are equal.
struct GroupAdvantage {
  bool center = true;  // without it an advantage is the reward, whatever normalize_std says
  bool normalize_std = true;
  Spread spread = Spread::group;
  bool population_std = false;  // over n instead of n - 1
  double eps = 1e-6;            // TRL has 1e-4
};

struct AdvantageOptions {
  Estimator estimator = Estimator::grpo;
  GroupAdvantage group = {};
  double gamma = 1, lambda = 1;  // of reinforce_plus_plus and ppo; of ppo
  bool whiten = false;           // of all rows that learn: slime's --normalize-advantages
};

// grpo of one group with its own std. DataError for a reward that is not finite.
std::vector<float> group_advantages(std::span<const float> rewards, const GroupAdvantage& how);

// Sets advantages of each datum. Reward i is of trajectory i and datum i; groups lie side by side. Where a trajectory's
// own reward is unknown, reward i is not looked at, its group is the others, and its advantages are 0. `kl` is what
// rows are charged if the estimator has token rewards (reward_shaping.h charges the sample otherwise). DataError for a
// reward that is not finite.
void set_advantages(std::span<train::Datum> datums, std::span<const Trajectory> trajectories,
                    std::span<const float> rewards, const AdvantageOptions& how, const RewardShaping& kl = {});

// (A - mean) / sqrt(var + 1e-8) over the rows of weight > 0 of all datums, var over N - 1 (N < 2: over N); 0 in the
// other rows. As slime's distributed_masked_whiten.
void whiten(std::span<train::Datum> datums);

}  // namespace lockstep::rl
