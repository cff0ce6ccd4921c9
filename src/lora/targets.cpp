#include "lora/targets.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace lockstep::lora {

namespace {

struct MegatronName {
  std::string_view name;
  std::array<std::string_view, 3> leaves;
};
constexpr MegatronName kMegatronNames[] = {
    {"linear_qkv", {"q_proj", "k_proj", "v_proj"}},
    {"linear_proj", {"o_proj"}},
    {"linear_fc1", {"gate_proj", "up_proj"}},
    {"linear_fc2", {"down_proj"}},
    {"linear_q", {"q_proj"}},
    {"linear_k", {"k_proj"}},
    {"linear_v", {"v_proj"}},
    {"linear_fc1_gate", {"gate_proj"}},
    {"linear_fc1_up", {"up_proj"}},
};

bool names_everything(const std::string& entry) {
  std::string lower = entry;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "all-linear" || entry == "all" || entry == "all_linear";
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

[[noreturn]] void unknown_name(const std::string& entry, const char* where, const std::vector<Module>& modules) {
  std::set<std::string> leaves;
  for (const Module& module : modules) leaves.insert(module.leaf);
  std::string existing, nearest;
  size_t best = std::max<size_t>(entry.size() / 2, 2);
  const auto consider = [&](std::string_view name) {
    existing += (existing.empty() ? "" : ", ") + std::string(name);
    const size_t distance = edit_distance(entry, name);
    if (distance < best) best = distance, nearest = name;
  };
  for (const std::string& leaf : leaves) consider(leaf);
  for (const MegatronName& megatron : kMegatronNames) consider(megatron.name);
  throw ConfigError({.what = "a module name matches no linear module of the model",
                     .where = where,
                     .got = entry,
                     .wanted = "all-linear, a full module name, or one of " + existing,
                     .attempt = nearest.empty() ? "" : nearest});
}

std::vector<bool> named_by_list(const std::vector<std::string>& entries, const char* where,
                                const std::vector<Module>& modules) {
  std::vector<bool> named(modules.size(), false);
  for (const std::string& entry : entries) {
    bool found = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!names_module(entry, modules[i])) continue;
      named[i] = found = true;
    }
    if (!found) unknown_name(entry, where, modules);
  }
  return named;
}

std::vector<bool> named_by_regex(const std::string& pattern, const std::vector<Module>& modules) {
  const std::regex regex = compile_pattern(pattern, "target_modules");
  std::vector<bool> named(modules.size());
  for (size_t i = 0; i < modules.size(); ++i) named[i] = std::regex_match(modules[i].name, regex);
  if (std::find(named.begin(), named.end(), true) == named.end()) unknown_name(pattern, "target_modules", modules);
  return named;
}

void keep_layers(std::vector<bool>& selected, const LoraConfig& config, const std::vector<Module>& modules) {
  if (!config.layers_to_transform || config.layers_to_transform->empty()) return;
  if (config.target_regex)
    throw ConfigError({.what = "layers_to_transform goes with a list of target modules, not with a regular expression",
                       .where = "layers_to_transform",
                       .got = "target_modules = " + *config.target_regex,
                       .attempt = "put the layer numbers into the regular expression"});
  const std::set<int64_t> layers(config.layers_to_transform->begin(), config.layers_to_transform->end());
  int64_t last = 0;
  for (const Module& module : modules) last = std::max(last, module.layer);
  if (*layers.begin() < 0 || *layers.rbegin() > last)
    throw ConfigError({.what = "a layer that the model does not have",
                       .where = "layers_to_transform",
                       .got = std::to_string(*layers.begin() < 0 ? *layers.begin() : *layers.rbegin()),
                       .wanted = "0 to " + std::to_string(last)});
  for (size_t i = 0; i < modules.size(); ++i) selected[i] = selected[i] && layers.count(modules[i].layer);
}

}  // namespace

bool names_module(const std::string& entry, const Module& module) {
  if (names_everything(entry)) return true;
  for (const MegatronName& megatron : kMegatronNames)
    if (megatron.name == entry)
      return !module.leaf.empty() &&
             std::find(megatron.leaves.begin(), megatron.leaves.end(), module.leaf) != megatron.leaves.end();
  if (entry.empty() || module.name == entry) return !entry.empty();
  return module.name.size() > entry.size() && module.name.ends_with(entry) &&
         module.name[module.name.size() - entry.size() - 1] == '.';
}

std::regex compile_pattern(const std::string& pattern, const std::string& where) {
  // libstdc++ compiles by recursion, so a hostile file could exhaust the stack.
  constexpr size_t kLongest = 8192;
  constexpr int kDeepest = 64;
  int depth = 0, deepest = 0;
  for (const char c : pattern) {
    if (c == '(') deepest = std::max(deepest, ++depth);
    if (c == ')') --depth;
  }
  if (pattern.size() > kLongest || deepest > kDeepest)
    throw ConfigError({.what = "a regular expression is too large",
                       .where = where,
                       .got = std::to_string(pattern.size()) + " characters, nested " + std::to_string(deepest),
                       .wanted = "at most 8192 characters, nested 64"});
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw ConfigError(
        {.what = "a regular expression cannot be read", .where = where, .got = pattern, .wanted = error.what()});
  }
}

std::vector<bool> select_modules(const LoraConfig& config, const std::vector<Module>& modules) {
  if (!config.target_regex && config.target_modules.empty())
    throw ConfigError({.what = "LoRA needs target modules",
                       .where = "--target-modules",
                       .got = "none",
                       .wanted = "all-linear, or a list such as q_proj,v_proj"});
  std::vector<bool> selected = config.target_regex ? named_by_regex(*config.target_regex, modules)
                                                   : named_by_list(config.target_modules, "--target-modules", modules);
  const std::vector<bool> excluded = named_by_list(config.exclude_modules, "--exclude-modules", modules);
  for (size_t i = 0; i < modules.size(); ++i) selected[i] = selected[i] && !excluded[i];
  keep_layers(selected, config, modules);
  if (std::find(selected.begin(), selected.end(), true) == selected.end())
    throw ConfigError({.what = "no module is left to adapt",
                       .where = "--exclude-modules",
                       .wanted = "at least one target that is not excluded"});
  return selected;
}

}  // namespace lockstep::lora
