// Rotary embedding keys of config.json.
#pragma once

#include "core/json.h"
#include "model/spec.h"

namespace lockstep::model {

// rope_theta + rope_scaling (transformers 4) or rope_parameters (5). FormatError: an unsupported kind, a contradiction
// between the two spellings, a partial rotation, numbers that cannot be.
RopeConfig parse_rope(const JsonObject& json, int64_t max_positions);

}  // namespace lockstep::model
