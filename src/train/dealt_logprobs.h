// Log-probs of datums that all ranks hold, each rank computing a share of them.
#pragma once

#include <span>
#include <vector>

#include "parallel/group.h"
#include "train/trainer.h"

namespace lockstep::train {

// What Trainer::logprobs gives, on every rank for all datums, which are the same everywhere. A row's bits depend on the
// row alone, so the ranks' shares are what one rank would compute. Collective: an error of one rank is thrown by all
// (parallel::agree). `between` is called on each rank after its own micro-batches.
std::vector<std::vector<float>> dealt_logprobs(Trainer& trainer, parallel::Group& group, std::span<const Datum> datums,
                                               const lora::AdapterVersion* adapter, const Progress& between = {});

}  // namespace lockstep::train
