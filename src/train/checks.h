// Checks of the Trainer's options and of datums. What a loss needs of a datum is checked by the loss.
#pragma once

#include "model/spec.h"
#include "train/datum.h"

namespace lockstep::train {

struct TrainerOptions;

void require_options(const TrainerOptions& options);  // ConfigError naming the field

// DataError naming the sample unless packing and the model can take it: lengths, tokens, a weight per row.
void require_readable(const Datum& datum, int64_t sample, const model::ModelSpec& config);
void require_weights(const Datum& datum, int64_t sample);

}  // namespace lockstep::train
