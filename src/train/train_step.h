// One optimizer step over a whole batch, as training loops take it.
#pragma once

#include <span>

#include "train/trainer.h"

namespace lockstep::train {

// begin_step, forward_backward, optim_step: of the group's ranks each takes its own samples. `between(done)` is called
// after each micro-batch of this rank, before anything of the adapter changes; what it throws abandons the step. Errors
// as of the Trainer, except that no step stays open.
StepReport train_step(Trainer& trainer, std::span<const Datum> datums, const Loss& loss, double lr, bool per_token,
                      const Progress& between = {});

}  // namespace lockstep::train
