// What a launch script says of the model and of number types, compared with what a run will do.
#pragma once

#include <string>
#include <vector>

#include "recipes/options.h"

namespace lockstep::recipes {

struct LaunchClaim {
  enum class Kind {
    model,         // a directory or hub id that is the model's or its tokenizer's: base.hf_checkpoint
    context,       // tokens of prompt and answer: at most what config.json says
    weight_type,   // what matmuls read: the CPU weights as the file has them and f32 beside them, a GPU bf16
    cache_type,    // of keys and values: f32 on the CPU, bf16 on a GPU
    adapter_type,  // of an adapter in matmuls: the same
    device,        // "cpu", "cuda", "cuda:0": the run's
  };
  std::string flag, value;
  Kind kind = Kind::model;
};

// Reads config.json. ConfigError naming the flag, its value and what the run does instead, of the first that is wrong.
void check_claims(const BaseOptions& base, const std::vector<LaunchClaim>& claims);

}  // namespace lockstep::recipes
