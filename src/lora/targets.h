// Which modules a configuration names: HF leaves, Megatron names, suffixes, or PEFT's regular expressions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "lora/adapter.h"
#include "lora/file_patterns.h"

namespace lockstep::lora {

// PEFT's rule for one entry of a list (name == entry, or it ends with "." + entry), after translating Megatron's names.
// "all-linear" (any case), "all" and "all_linear" name every linear module but the head.
bool names_module(const std::string& entry, const Module& module);

// Whether the module is a target by its full name, which layers_to_transform does not limit.
bool is_listed(const LoraConfig& config, const Module& module);

// Leaves that read one input are a group, and groups are numbered in the order of forward: 0 is q_proj, k_proj, v_proj
// (places 0, 1, 2). A leaf of other model families counts as the first of the o_proj group.
struct LeafPlace {
  int group = 1, place = 0;
};
LeafPlace place_of(std::string_view leaf);

// Throws `fault` about one property of a configuration: FormatError at `key` of config.file if it was read from one,
// else ConfigError at `flag`. What fault.where says already follows that place.
[[noreturn]] void reject(const LoraConfig& config, const std::string& flag, const std::string& key, Fault fault);

// selected[i] says whether modules[i] is targeted: targets minus exclusions, limited to layers_to_transform, as in
// PEFT. What modules_to_save names is no target. An exclusion may also name a part of the model that is never a target
// (norms). Rejects: an entry that names nothing (with the names that exist and the nearest), no target at all. Entries
// of a file may name nothing, as in PEFT: its tensors tell what it is of.
std::vector<bool> select_modules(const LoraConfig& config, const std::vector<Module>& modules, FilePatterns& patterns);

// saved[i] says whether modules_to_save names modules[i]. Rejects an entry that names nothing, or more than the
// embedding and the head.
std::vector<bool> saved_modules(const LoraConfig& config, const std::vector<Module>& modules);

// Leaves that LoraType::fused trains because a sibling that is a target shares their A, though exclude_modules names
// them or target_modules, a list, does not: what a user should be told.
struct SharedSiblings {
  std::vector<std::string> excluded = {}, unnamed = {};
};
SharedSiblings shared_siblings(const LoraConfig& config);

}  // namespace lockstep::lora
