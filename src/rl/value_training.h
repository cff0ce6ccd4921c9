// What PPO's critic does in a step: it predicts the value of every row of the rollout, and then learns the returns.
//
// The value of row t is the critic's prediction of the return after reading tokens 0 to t, before token t + 1 is
// chosen. It is the row whose log-prob is that of token t + 1, as in slime, miles, verl and TRL. All values of a
// rollout are computed with the weights from before its first step, so the order of batches does not change what is
// learned.
#pragma once

#include <optional>

#include "rl/parts.h"
#include "rl/step_batches.h"
#include "train/schedule.h"

namespace lockstep::rl {

struct ValuePlan {
  int64_t batch_size = 0;  // samples of an optimizer step: the actor's
  train::Schedule schedule = {};
  train::ValueLoss loss = {};
  train::Reduction reduction = {};
  OnNotFinite on_not_finite = {};
};

struct ValueReport {
  int64_t taken_steps = 0, abandoned_steps = 0;
  double value_loss = 0, clip_fraction = 0;  // means over the steps that were taken
  double grad_norm = 0;                      // the largest, before clipping
  double lr = 0;                             // of the first step
  // None where no token learns: of the returns by the values, before the first step; means of values and of returns.
  std::optional<double> explained_variance = {}, value = {}, wanted = {};
};

// Sets values of each datum. `between` may throw. With a group it is collective, and each rank computes a share
// (train/dealt_rows.h).
void set_values(std::span<train::Datum> datums, train::Trainer& critic, const train::Progress& between = {},
                parallel::Group* group = nullptr);

// One optimizer step per batch, in order, but for batches that learn nothing. Until the first step is about to change
// the critic an interrupt is noticed; afterwards all steps are taken. The samples are reported as done, 0 to all.
ValueReport train_values(train::Trainer& critic, std::span<const train::Datum> datums, const ValuePlan& plan,
                         const Watch& watch = {});

}  // namespace lockstep::rl
