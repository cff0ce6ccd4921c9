// What is done with a rollout, as a value.
#pragma once

#include "rl/advantage.h"
#include "rl/reward_shaping.h"
#include "train/loss.h"

namespace lockstep::rl {

struct Algorithm {
  RewardShaping shaping = {};
  GroupAdvantage advantage = {};
  train::PolicyLoss loss = {};
  bool per_token_loss = false;  // the loss is a mean over all tokens of a step instead of over its samples
  bool measure_kl = false;      // to the reference, even if nothing learns from it

  bool needs_reference() const { return measure_kl || shaping.kl_coef != 0 || loss.kl_coef != 0; }
};

// Group advantages and the clipped policy loss, without KL. Source: arXiv 2402.03300; constants as in slime.
inline Algorithm grpo() {
  return {};
}

}  // namespace lockstep::rl
