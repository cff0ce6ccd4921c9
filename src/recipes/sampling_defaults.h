// Sampling parameters in a model's generation_config.json, and how they are combined with those of the user.
#pragma once

#include <iosfwd>
#include <optional>

#include "recipes/base.h"
#include "rollout/sampling.h"

namespace lockstep::recipes {

// Fields the file has; the others are the caller's to choose.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_new_tokens;
  bool greedy = false;  // do_sample = false
};

// `info`, if given, receives a line for each key that would change the text in transformers and is in no field above.
// FormatError naming the file: a value of another type.
SamplingDefaults read_sampling_defaults(const std::optional<Json>& generation_config, const std::string& where,
                                        std::ostream* info = nullptr);

// The user's values first, then generation_config.json (whose do_sample = false means greedy), then the defaults of
// SamplingParams; the model's end tokens end a sample unless ignore_eos. ConfigError: values that cannot be.
rollout::SamplingParams resolve_sampling(const SamplingOptions& options, const Base& base, std::ostream* info);

}  // namespace lockstep::recipes
