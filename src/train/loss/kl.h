// KL estimators with their slopes.
#pragma once

#include "train/policy_loss.h"

namespace lockstep::train {

struct Estimate {
  double value = 0, slope = 0;  // slope: d value / d logprob
};

// k1 = logprob - ref_logprob.
Estimate estimate_kl(KlType type, double k1);
// The same times the ratio to the old policy, through which the gradient flows; low_var is clamped afterwards.
Estimate estimate_unbiased_kl(KlType type, double k1, double ratio, double ratio_slope);

}  // namespace lockstep::train
