#include "lora/targets.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/nearest_name.h"
#include "lora/megatron_names.h"

namespace lockstep::lora {

namespace {

bool names_everything(const std::string& entry) {
  std::string lower = entry;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "all-linear" || entry == "all" || entry == "all_linear";
}

// Parts of the models that may be excluded though they are no targets, or not of every model's list of modules; in the
// names of Hugging Face and Megatron.
constexpr std::string_view kNeverTargets[] = {
    "lm_head", "embed_tokens", "norm",         "input_layernorm", "post_attention_layernorm", "q_norm",
    "k_norm",  "rotary_emb",   "output_layer", "embedding",       "word_embeddings",          "final_layernorm"};

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

struct ListRole {
  const char* flag;
  const char* key;
};
constexpr ListRole kTargets = {"LoraConfig::target_modules", "target_modules"};
constexpr ListRole kExclusions = {"LoraConfig::exclude_modules", "exclude_modules"};

[[noreturn]] void unknown_name(const LoraConfig& config, const std::string& entry, const ListRole& role,
                               const std::vector<Module>& modules) {
  std::set<std::string> leaves;
  for (const Module& module : modules) leaves.insert(module.leaf);
  std::vector<std::string> names(leaves.begin(), leaves.end());
  for (const MegatronModule& megatron : kMegatronModules) names.emplace_back(megatron.name);
  for (const MegatronModule& megatron : kMegatronModules)
    for (int part = 0; megatron.parts > 1 && part < megatron.parts; ++part)
      names.emplace_back(megatron.targets[static_cast<size_t>(part)]);
  std::string existing;
  for (const std::string& name : names) existing += (existing.empty() ? "" : ", ") + name;
  reject(config, role.flag, role.key,
         {.what = "a module name matches no linear module of the model",
          .got = entry,
          .wanted = "all-linear, a full module name, or one of " + existing,
          .attempt = nearest_name(entry, names)});
}

std::vector<bool> named_by_list(const LoraConfig& config, const ListRole& role, const std::vector<Module>& modules) {
  const bool excludes = &role == &kExclusions;
  std::vector<bool> named(modules.size(), false);
  bool any = false;
  for (const std::string& entry : excludes ? config.exclude_modules : config.target_modules) {
    bool found = excludes && std::ranges::count(kNeverTargets, last_part(entry)) > 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!names_module(entry, modules[i])) continue;
      named[i] = found = true;
    }
    if (!found && config.file.empty()) unknown_name(config, entry, role, modules);
    any = any || found;
  }
  if (!any && !excludes) unknown_name(config, config.target_modules.front(), role, modules);
  return named;
}

std::vector<bool> named_by_regex(const LoraConfig& config, const std::vector<Module>& modules, FilePatterns& patterns) {
  std::vector<bool> named = patterns.whole_names(*config.target_regex, kTargets.key);
  if (std::find(named.begin(), named.end(), true) == named.end())
    reject(config, kTargets.flag, kTargets.key,
           {.what = "a regular expression matches no linear module of the model",
            .got = *config.target_regex,
            .wanted = "a match of a whole name such as " + (modules.empty() ? "" : modules.front().name)});
  return named;
}

// PEFT's re.fullmatch of a string, or the list.
std::vector<bool> excluded_modules(const LoraConfig& config, const std::vector<Module>& modules,
                                   FilePatterns& patterns) {
  if (config.exclude_regex) return patterns.whole_names(*config.exclude_regex, kExclusions.key);
  return named_by_list(config, kExclusions, modules);
}

// PEFT asks for the layer only where an entry is not the module's full name.
void keep_layers(std::vector<bool>& selected, const LoraConfig& config, const std::vector<Module>& modules,
                 FilePatterns& patterns) {
  if (!config.layers_to_transform || config.layers_to_transform->empty()) return;
  if (config.target_regex)
    reject(config, "layers_to_transform", "layers_to_transform",
           {.what = "layers_to_transform goes with a list of target modules, not with a regular expression",
            .got = "target_modules = " + *config.target_regex,
            .attempt = "put the layer numbers into the regular expression"});
  const std::set<int64_t> layers(config.layers_to_transform->begin(), config.layers_to_transform->end());
  int64_t last = 0;
  for (const Module& module : modules) last = std::max(last, module.layer);
  if (*layers.begin() < 0 || *layers.rbegin() > last)
    reject(config, "layers_to_transform", "layers_to_transform",
           {.what = "a layer that the model does not have",
            .got = std::to_string(*layers.begin() < 0 ? *layers.begin() : *layers.rbegin()),
            .wanted = "0 to " + std::to_string(last)});
  std::vector<bool> numbered(modules.size(), config.layers_pattern.empty());
  for (const std::string& pattern : config.layers_pattern) {
    const std::vector<bool> found = patterns.numbered_names(pattern, "layers_pattern");
    for (size_t i = 0; i < modules.size(); ++i) numbered[i] = numbered[i] || found[i];
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const bool in_layers = numbered[i] && layers.contains(modules[i].layer);
    selected[i] = selected[i] && (in_layers || is_listed(config, modules[i]));
  }
}

}  // namespace

LeafPlace place_of(std::string_view leaf) {
  for (int group = 0; const MegatronModule& megatron : kMegatronModules) {
    for (int place = 0; place < megatron.parts; ++place)
      if (megatron.leaves[static_cast<size_t>(place)] == leaf) return {group, place};
    ++group;
  }
  return {};
}

void reject(const LoraConfig& config, const std::string& flag, const std::string& key, Fault fault) {
  const std::string place = config.file.empty() ? flag : config.file + ": " + key;
  fault.where = fault.where.empty() ? place : place + ", " + fault.where;
  if (config.file.empty()) throw ConfigError(std::move(fault));
  throw FormatError(std::move(fault));
}

bool is_listed(const LoraConfig& config, const Module& module) {
  return std::ranges::count(config.target_modules, module.name) > 0;
}

bool names_module(const std::string& entry, const Module& module) {
  if (names_everything(entry)) return module.kind == ModuleKind::linear;
  for (const MegatronModule& megatron : kMegatronModules)
    for (size_t part = 0; part < static_cast<size_t>(megatron.parts); ++part)
      if (entry == megatron.name || (megatron.parts > 1 && entry == megatron.targets[part])) {
        if (module.leaf == megatron.leaves[part]) return true;
      }
  if (entry.empty() || module.name == entry) return !entry.empty();
  return module.name.size() > entry.size() && module.name.ends_with(entry) &&
         module.name[module.name.size() - entry.size() - 1] == '.';
}

std::vector<bool> select_modules(const LoraConfig& config, const std::vector<Module>& modules, FilePatterns& patterns) {
  if (!config.target_regex && config.target_modules.empty())
    reject(
        config, kTargets.flag, kTargets.key,
        {.what = "LoRA needs target modules", .got = "none", .wanted = "all-linear, or a list such as q_proj,v_proj"});
  std::vector<bool> selected =
      config.target_regex ? named_by_regex(config, modules, patterns) : named_by_list(config, kTargets, modules);
  const std::vector<bool> excluded = excluded_modules(config, modules, patterns);
  const std::vector<bool> saved = saved_modules(config, modules);
  for (size_t i = 0; i < modules.size(); ++i) selected[i] = selected[i] && !excluded[i] && !saved[i];
  keep_layers(selected, config, modules, patterns);
  if (std::find(selected.begin(), selected.end(), true) == selected.end())
    reject(config, kExclusions.flag, kExclusions.key,
           {.what = "no module is left to adapt", .wanted = "at least one target that is not excluded"});
  return selected;
}

std::vector<bool> saved_modules(const LoraConfig& config, const std::vector<Module>& modules) {
  std::vector<bool> saved(modules.size(), false);
  const auto refuse = [&](const std::string& entry) {
    reject(config, "LoraConfig::modules_to_save", "modules_to_save",
           {.what = "a module whose weight is trained whole must be the embedding or the head",
            .got = entry,
            .wanted = "embed_tokens, lm_head",
            .attempt = "target_modules: LoRA factors for it"});
  };
  for (const std::string& entry : config.modules_to_save) {
    bool found = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (names_everything(entry) || !names_module(entry, modules[i])) continue;
      if (modules[i].kind == ModuleKind::linear) refuse(entry);
      saved[i] = found = true;
    }
    if (!found) refuse(entry);
  }
  return saved;
}

SharedSiblings shared_siblings(const LoraConfig& config) {
  SharedSiblings shared;
  if (config.type != LoraType::fused) return shared;
  const auto named = [](const std::vector<std::string>& entries, const std::string& leaf) {
    return std::ranges::any_of(entries, [&](const std::string& entry) {
      return names_module(std::string(last_part(entry)), {.name = leaf, .leaf = leaf});
    });
  };
  for (const MegatronModule& fused : kMegatronModules) {
    if (fused.parts == 1) continue;
    SharedSiblings siblings;
    bool is_target = false;
    for (const std::string_view part : fused.leaves) {
      const std::string leaf(part);
      if (leaf.empty()) continue;
      if (named(config.exclude_modules, leaf))
        siblings.excluded.push_back(leaf);
      else if (named(config.target_modules, leaf))
        is_target = true;
      else
        siblings.unnamed.push_back(leaf);
    }
    if (!is_target) continue;
    std::ranges::move(siblings.excluded, std::back_inserter(shared.excluded));
    std::ranges::move(siblings.unnamed, std::back_inserter(shared.unnamed));
  }
  return shared;
}

}  // namespace lockstep::lora
