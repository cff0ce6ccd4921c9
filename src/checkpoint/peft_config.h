// adapter_config.json <-> LoraConfig, for peft_directory.h and for adapters that travel as tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lora/config.h"

namespace lockstep::checkpoint {

// Text of adapter_config.json; `where` names it in errors. type is canonical. FormatError for every key whose meaning
// would be lost (value_width is 1 where there is a value head, whose width the weights say): not one we use, not harmless, and neither null, false, empty nor PEFT's default.
lora::LoraConfig parse_peft_config(std::string_view text, const std::string& where);

// What PEFT, vLLM and SGLang read: top-level keys sorted, indent 2, no newline at the end. The patterns keep their
// order, for the first match wins.
std::string peft_config_text(const lora::LoraConfig& config, const std::vector<std::string>& target_modules,
                             const std::string& base_model_name);

}  // namespace lockstep::checkpoint
