// config.json as a ModelSpec.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "model/spec.h"

namespace lockstep::model {

// Old (rope_theta, rope_scaling, torch_dtype) and new (rope_parameters, dtype) spelling. A key we do not know passes if
// its value is null, false, empty, or the key is in the list of harmless ones; otherwise FormatError naming it.
// Defaults per family as in transformers. FormatError for impossible numbers (heads % kv_heads, odd head_dim, absurd
// sizes), other families, other activations than silu.
ModelSpec parse_config(const Json& config, const std::string& where);

// The model_type of every family.
std::vector<std::string> family_names();

}  // namespace lockstep::model
