// How many optimizer steps a run has, and how many tokens a micro-batch.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "recipes/options.h"

namespace lockstep::recipes {

// ConfigError if the warm-up would not end in a run of `steps` optimizer steps.
void check_warmup(const OptimizerOptions& optimizer, int64_t steps);

// The learning rates of a run of `steps` optimizer steps: its warm-up and decay in steps. ConfigError as check_warmup.
train::Schedule schedule_of(const OptimizerOptions& optimizer, int64_t steps);

// Optimizer steps of a supervised run over this many rows; the last step of an epoch may be smaller.
int64_t sft_steps(const SftOptions& options, int64_t rows);

// --max-tokens-per-gpu, or what keeps the device busy while the logits of a micro-batch still fit the model's bound.
int64_t micro_batch_tokens(const TrainingOptions& training, const model::ModelSpec& config, Device device);

}  // namespace lockstep::recipes
