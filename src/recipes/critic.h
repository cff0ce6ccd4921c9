// PPO's critic: a second trainer on the same base, whose adapter has a value head. Where it begins, its schedule, what
// is kept of it; what it does in a step is rl/value_training.h.
#pragma once

#include "recipes/second_trainers.h"

namespace lockstep::recipes {

// ConfigError: a rank is given beside an adapter to begin with, which has its own; FormatError, ShapeError: an adapter
// of another base; what load_adapter throws.
extern const SecondTrainerKind kCritic;

// `adapter` and a fresh value head: its weight normal with deviation 0.02, its bias 0.
lora::AdapterVersion with_value_head(const lora::AdapterVersion& adapter, const Base& base, uint64_t seed);

}  // namespace lockstep::recipes
