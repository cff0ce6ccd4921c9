// Which modules an adapter_config.json names, so that every reader finds exactly those that have tensors.
#pragma once

#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

// A configuration whose target_modules, exclude_modules and layers_to_transform select, of all the model's modules,
// exactly those with covered[i]: by PEFT's rule (a name is equal to an entry or ends with "." and the entry; exclusions
// are taken out; layers do not hold for full names) and by select_modules. The lists of `shortest`, which are leaf
// names, if they do that; otherwise full names, because what was chosen by full names, by suffixes or by a regular
// expression, or what shared factors brought along, has no shorter form.
LoraConfig exact_targets(LoraConfig shortest, const std::vector<Module>& modules, const std::vector<bool>& covered);

}  // namespace lockstep::lora
