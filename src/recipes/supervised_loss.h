// What a run of sft or dpo says of its loss: its name, what checkpoints keep of it, a line of a dry run.
#pragma once

#include <string>

#include "recipes/options.h"

namespace lockstep::recipes {

// As --loss-type names it.
std::string loss_name(const train::Loss& loss);
// Settings of a checkpoint (recipes/run_settings.h): the name and --dpo-beta, which every run has, and what else the
// loss has where it is not what it is without its flag.
OrderedJson loss_settings(const train::Loss& loss);
// "DPO with beta 0.1, the reference is the base"
std::string describe_loss(const SftOptions& options);

}  // namespace lockstep::recipes
