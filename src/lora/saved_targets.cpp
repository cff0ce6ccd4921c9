#include "lora/saved_targets.h"

#include <algorithm>
#include <string>

#include "lora/targets.h"

namespace lockstep::lora {

namespace {

bool peft_names(const std::string& entry, const Module& module) {
  return module.name == entry || module.name.ends_with("." + entry);
}

template <class Names>
bool selects(const LoraConfig& config, const Module& module, const Names& names) {
  const auto names_it = [&](const std::string& entry) { return names(entry, module); };
  const auto& layers = config.layers_to_transform;
  return std::ranges::any_of(config.target_modules, names_it) &&
         std::ranges::none_of(config.exclude_modules, names_it) &&
         (!layers || layers->empty() || std::ranges::count(*layers, module.layer) > 0 || is_listed(config, module));
}

}  // namespace

LoraConfig exact_targets(LoraConfig shortest, const std::vector<Module>& modules, const std::vector<bool>& covered) {
  shortest.target_regex = shortest.exclude_regex = std::nullopt;
  shortest.layers_pattern.clear();
  bool exact = true;
  std::vector<std::string> names;
  for (size_t i = 0; i < modules.size(); ++i) {
    exact = exact && selects(shortest, modules[i], peft_names) == covered[i] &&
            selects(shortest, modules[i], names_module) == covered[i];
    if (covered[i]) names.push_back(modules[i].name);
  }
  if (exact) return shortest;
  shortest.target_modules = std::move(names);
  shortest.exclude_modules.clear();
  shortest.layers_to_transform = std::nullopt;
  return shortest;
}

}  // namespace lockstep::lora
