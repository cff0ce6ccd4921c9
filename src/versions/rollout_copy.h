// An adapter as other engines read it: vLLM ignores rank and alpha patterns, SGLang rsLoRA as well, and neither takes
// regular expressions. So every pair is written with the largest rank (zeros added), its scale multiplied into B in
// f32, lora_alpha = r, and target_modules as a list of suffixes: scale 1 wherever it is read.
#pragma once

#include <string>

#include "core/fs.h"
#include "lora/adapter.h"

namespace lockstep::versions {

struct CopyOptions {
  std::string base_name;  // base_model_name_or_path
  // Ours read the adapter as it is: no byte of its weights changes.
  bool exact = false;
};

// Writes a PEFT directory at once (written aside, synced and renamed). ResourceError: the disk is full. ConfigError:
// the adapter has what a PEFT adapter of factors cannot say (a magnitude, a bias, a weight or a head of its own).
void write_rollout_copy(const fs::Path& directory, const lora::AdapterVersion& adapter, const CopyOptions& options,
                        Stream& stream);

}  // namespace lockstep::versions
