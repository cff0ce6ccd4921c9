#include "recipes/algorithm.h"

namespace lockstep::recipes {

rl::Algorithm algorithm_of(const RlOptions& options) {
  rl::Algorithm algorithm{.shaping = {.kl_coef = options.kl_reward_coef, .kl_type = options.loss.kl_type},
                          .advantage = options.advantage,
                          .distillation = options.distill ? options.distill_coef : 0,
                          .correction = options.correction,
                          .loss = options.loss,
                          .choice = options.row_choice,
                          .reduction = options.reduction,
                          .measure_kl = options.use_kl_loss};
  algorithm.advantage.group.center = options.normalize_rewards;
  algorithm.advantage.group.normalize_std = options.normalize_std;
  if (!options.use_kl_loss) algorithm.loss.kl_coef = 0;
  return algorithm;
}

}  // namespace lockstep::recipes
