// One optimizer step over a whole batch, as training loops take it.
#pragma once

#include <span>

#include "train/reduction.h"
#include "train/trainer.h"

namespace lockstep::train {

// The plan of a step of all these datums.
StepPlan step_plan(std::span<const Datum> datums, const Loss& loss, const Reduction& reduction);

// begin_step, forward_backward, optim_step: of the group's ranks each takes its own samples, in the order that
// TrainerOptions::balance asks for. `between(done)` is called
// after each micro-batch of this rank, before anything of the adapter changes; what it throws abandons the step. Errors
// as of the Trainer, except that no step stays open. A step whose weights are all 0 adds nothing to the gradient.
StepReport train_step(Trainer& trainer, std::span<const Datum> datums, const Loss& loss, double lr,
                      const Reduction& reduction, const Progress& between = {});

}  // namespace lockstep::train
