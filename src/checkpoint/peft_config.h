// adapter_config.json <-> LoraConfig, for peft_directory.h and for adapters that travel as tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lora/config.h"

namespace lockstep::checkpoint {

// The fields of an adapter_config.json, of which `text` is the contents; `where` names the file in errors.
// LoraConfig::type is canonical. If the adapter has a value head, value_width is 1: its real width is only known from
// the weights. A key that we neither use nor may ignore is a FormatError, unless its value is null, false, empty or
// PEFT's default, so that no setting is lost silently.
lora::LoraConfig parse_peft_config(std::string_view text, const std::string& where);

// What PEFT, vLLM and SGLang read: top-level keys sorted, indent 2, no newline at the end. The patterns keep their
// order, for the first match wins.
std::string peft_config_text(const lora::LoraConfig& config, const std::vector<std::string>& target_modules,
                             const std::string& base_model_name);

}  // namespace lockstep::checkpoint
