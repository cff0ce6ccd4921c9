#include "lora/config.h"

#include <charconv>

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

namespace {

constexpr TrainedBiases kAllBiases[] = {TrainedBiases::none, TrainedBiases::lora_only, TrainedBiases::all};

}  // namespace

const char* trained_biases_name(TrainedBiases biases) {
  return biases == TrainedBiases::none ? "none" : biases == TrainedBiases::lora_only ? "lora_only" : "all";
}

std::optional<TrainedBiases> trained_biases_of(const std::string& name) {
  for (const TrainedBiases biases : kAllBiases)
    if (name == trained_biases_name(biases)) return biases;
  return std::nullopt;
}

namespace {

struct InitName {
  InitMethod method;
  const char* name;
};
constexpr InitName kInitNames[] = {{InitMethod::standard, "true"},     {InitMethod::random, "false"},
                                   {InitMethod::gaussian, "gaussian"}, {InitMethod::orthogonal, "orthogonal"},
                                   {InitMethod::pissa, "pissa"},       {InitMethod::olora, "olora"}};
constexpr std::string_view kWithIterations = "pissa_niter_";
constexpr int64_t kMaxIterations = 1000;

}  // namespace

std::string lora_init_name(const LoraInit& init) {
  if (init.iterations) return std::string(kWithIterations) + std::to_string(*init.iterations);
  for (const InitName& known : kInitNames)
    if (known.method == init.method) return known.name;
  return {};
}

std::optional<LoraInit> lora_init_of(const std::string& name) {
  for (const InitName& known : kInitNames)
    if (name == known.name) return LoraInit{.method = known.method};
  if (!name.starts_with(kWithIterations)) return std::nullopt;
  int64_t iterations = -1;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kWithIterations.size(), end, iterations);
  if (parsed.ec != std::errc() || parsed.ptr != end || iterations < 0 || iterations > kMaxIterations)
    return std::nullopt;
  return LoraInit{.method = InitMethod::pissa, .iterations = iterations};
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
