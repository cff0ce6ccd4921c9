#include "lora/config.h"

#include "core/error.h"

namespace lockstep::lora {

const char* lora_type_name(LoraType type) {
  return type == LoraType::fused ? "lora" : "canonical_lora";
}

LoraType parse_lora_type(const std::string& name) {
  if (name == "lora") return LoraType::fused;
  if (name == "canonical_lora") return LoraType::canonical;
  throw ConfigError(
      {.what = "unknown LoRA type", .where = "LoraConfig::type", .got = name, .wanted = "lora or canonical_lora"});
}

std::vector<std::string> split_module_list(const std::string& text) {
  constexpr const char* kSeparators = ", \t\r\n";
  std::vector<std::string> names;
  for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string::npos;) {
    const size_t end = text.find_first_of(kSeparators, begin);
    names.push_back(text.substr(begin, end - begin));
    begin = end == std::string::npos ? end : text.find_first_not_of(kSeparators, end);
  }
  return names;
}

}  // namespace lockstep::lora
