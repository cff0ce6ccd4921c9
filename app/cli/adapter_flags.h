// Which adapter a command trains, and from what it starts.
#pragma once

#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

Flag adapter_path_flag(std::string& path, std::string help);
std::vector<Flag> required_lora_flags(recipes::AdapterOptions& adapter);  // --lora-rank and --target-modules
std::vector<Flag> lora_flags(recipes::AdapterOptions& adapter);           // the others

// ConfigError: no adapter is described, or a flag asks for what LoRA excludes.
void resolve_adapter(recipes::AdapterOptions& adapter, const Classified& given);
// A note where --exclude-modules cannot mean what it says, because fused siblings share one A.
void note_exclusions(const lora::LoraConfig& config, std::vector<std::string>& notes);

}  // namespace lockstep::cli
