// Supervised training and, with a DpoLoss or KtoLoss, preference training.
#pragma once

#include "recipes/control.h"
#include "recipes/options.h"

namespace lockstep::recipes {

// On an interrupt it finishes or abandons the current step, saves, and throws Cancelled whose message says how to
// resume. Otherwise it throws the errors of core/error.h.
void run_sft(const SftOptions& options, const Control& control);

}  // namespace lockstep::recipes
