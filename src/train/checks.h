// What the Trainer asks of its options and of datums; what a loss needs is the loss's own business.
#pragma once

#include "model/spec.h"
#include "train/datum.h"

namespace lockstep::train {

struct TrainerOptions;

void require_options(const TrainerOptions& options);  // ConfigError naming the flag

// DataError naming the sample: what packing and the model need; a weight per row.
void require_readable(const Datum& datum, int64_t sample, const model::ModelSpec& config);
void require_weights(const Datum& datum, int64_t sample);

}  // namespace lockstep::train
