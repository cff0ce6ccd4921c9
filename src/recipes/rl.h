// Reinforcement learning: rollouts, rewards and steps in turn.
#pragma once

#include "recipes/control.h"
#include "recipes/memory_plan.h"
#include "recipes/options.h"

namespace lockstep::recipes {

// What such a run has beside the actor's trainer: its engine, and every further trainer. For the run and its --dry-run.
// Throws what SecondTrainerKind::layout throws (recipes/second_trainers.h).
BesideTrainer beside_trainer(const RlOptions& options, const Base& base);

// On an interrupt it finishes or abandons the current step, saves, and throws Cancelled whose message says how to
// resume. Otherwise it throws the errors of core/error.h.
void run_rl(const RlOptions& options, const Control& control);

}  // namespace lockstep::recipes
