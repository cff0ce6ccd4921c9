// Generalized advantage estimation.
#pragma once

#include <span>

#include "rl/reward_shaping.h"
#include "train/datum.h"

namespace lockstep::rl {

struct GaeOptions {
  double gamma = 1, lambda = 1;  // in [0, 1]
};

// Sets advantages and returns of a datum from its values. Over the rows of weight > 0, numbered 1 .. n in order; what
// lies between turns is no step of the process, and the step before it is followed by the first one behind it.
//   r_k      = -kl_coef KL_k, + reward at k = n
//   delta_k  = r_k + gamma V_(k+1) - V_k,  V_(n+1) = 0
//   A_k      = delta_k + gamma lambda A_(k+1),  A_(n+1) = 0
//   return_k = A_k + V_k
// Nothing is bootstrapped behind the last step, also not of a sample that was cut at its longest: its reward is all
// there is, as in slime, miles, verl and TRL. 0 in the other rows. In double. DataError if values are missing or not
// finite where they are read, or the reward is not. Source: arXiv 1506.02438, equation 16.
void set_gae(train::Datum& datum, double reward, const GaeOptions& options, const RewardShaping& kl);

// 1 - var(returns - values) / (var(returns) + 1e-5) over the rows of weight > 0 of all datums: 1 where the values are
// the returns, 0 or less where their mean would have been as good. 0 with fewer than two rows. As verl's
// critic/vf_explained_var.
double explained_variance(std::span<const train::Datum> datums);

}  // namespace lockstep::rl
