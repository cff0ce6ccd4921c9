// Which modules a configuration names: HF leaves, Megatron names, suffixes, or PEFT's regular expressions.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

// PEFT's rule for one entry of a list (name == entry, or it ends with "." + entry), after translating Megatron's names.
// "all-linear" (any case), "all" and "all_linear" name every module.
bool names_module(const std::string& entry, const Module& module);

// A regular expression of an adapter file or the command line (ECMAScript grammar; PEFT's are the common subset).
// ConfigError, naming `where` and the pattern: invalid, longer than 8192 characters, or nested deeper than 64.
std::regex compile_pattern(const std::string& pattern, const std::string& where);

// selected[i] says whether modules[i] is targeted: targets minus exclusions, limited to layers_to_transform.
// ConfigError: an entry that names nothing (with the names that exist and the nearest), no target at all.
std::vector<bool> select_modules(const LoraConfig& config, const std::vector<Module>& modules);

}  // namespace lockstep::lora
