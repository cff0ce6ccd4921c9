// What is done with a rollout, as a value.
#pragma once

#include "rl/advantage.h"
#include "rl/coefficients.h"
#include "rl/correction.h"
#include "rl/distillation.h"
#include "rl/objectives.h"
#include "rl/reward_shaping.h"
#include "train/loss.h"
#include "train/reduction.h"
#include "train/row_choice.h"

namespace lockstep::rl {

struct Algorithm {
  RewardShaping shaping = {};
  AdvantageOptions advantage = {};
  std::vector<Objective> objectives = {};  // if there are any, advantages are their normalized_sum
  Distillation distillation = {};          // in the advantages; or by a loss that flows: loss.distill
  Correction correction = {};
  train::PolicyLoss loss = {};
  train::RowChoice choice = {};  // of the loss: what needs a forward over the whole step first
  train::Reduction reduction = {};
  KlControl kl_control = {};
  EntropyControl entropy_control = {};
  bool measure_kl = false;  // to the reference, even if nothing learns from it

  bool needs_teacher() const { return distillation.coef != 0 || loss.distill.kind != train::DistillKind::none; }
  bool needs_critic() const { return advantage.estimator == Estimator::ppo; }
  bool needs_reference() const { return measure_kl || shaping.kl_coef != 0 || loss.kl_coef != 0; }
};

// Group advantages and the clipped policy loss, without KL. Source: arXiv 2402.03300; constants as in slime.
inline Algorithm grpo() {
  return {};
}

}  // namespace lockstep::rl
