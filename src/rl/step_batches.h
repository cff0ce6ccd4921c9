// A rollout's datums as the batches of its optimizer steps.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "train/not_finite.h"
#include "train/train_step.h"

namespace lockstep::rl {

// Told of each step that is abandoned because its numbers are not finite, and of its datums; the other steps are taken.
// What it throws ends the training. Empty: the error does.
using OnNotFinite = std::function<void(const train::NotFiniteError&, std::span<const train::Datum>)>;

// ConfigError unless batch_size divides the number of samples.
int64_t num_steps(size_t samples, int64_t batch_size);

bool has_weight(std::span<const train::Datum> batch);  // some row of it learns

// train::train_step; nullopt where it was abandoned.
std::optional<train::StepReport> take_step(train::Trainer& trainer, std::span<const train::Datum> batch,
                                           const train::Loss& loss, double lr, const train::Reduction& reduction,
                                           const train::Progress& between, const OnNotFinite& on_not_finite);

}  // namespace lockstep::rl
