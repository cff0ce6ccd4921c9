// Sampling parameters by name: for a record of a run, and for what a user sets in a conversation.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "rollout/sampling.h"

namespace lockstep::recipes {

// All that decides which tokens are drawn, by the names of the fields.
OrderedJson sampling_json(const rollout::SamplingParams& params);

// Sets one field from a text: a number, or for "stop" a JSON list of strings or a text as it is (empty: none).
// ConfigError naming the fields there are, or what the value should be; nothing is changed then.
void set_sampling_field(rollout::SamplingParams& params, const std::string& name, std::string_view value);

}  // namespace lockstep::recipes
