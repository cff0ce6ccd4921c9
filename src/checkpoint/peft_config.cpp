#include "checkpoint/peft_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "checkpoint/peft_keys.h"
#include "core/json.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kValueTask = "TOKEN_CLS";
constexpr const char* kValueHead = "score";

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == "" || ((value.is_array() || value.is_object()) && value.empty());
}

[[noreturn]] void unsupported(const JsonObject& config, const std::string& key, const std::string& wanted,
                              const std::string& attempt = {}) {
  throw FormatError({.what = "unsupported value in a PEFT adapter",
                     .where = config.where() + ": " + key,
                     .got = config.value(key).dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200),
                     .wanted = wanted,
                     .attempt = attempt});
}

// Names of modules, each once; none if the key is absent or null. Every one is held against every module of a model, so
// how many there may be is bounded: more than any model has modules.
std::vector<std::string> strings(const JsonObject& config, const std::string& key) {
  constexpr size_t kMaxNames = 100'000;
  std::vector<std::string> list;
  std::unordered_set<std::string> seen;
  if (!config.has(key)) return list;
  const Json& value = config.value(key);
  if (!value.is_array()) unsupported(config, key, "a list of module names");
  for (const Json& item : value) {
    if (!item.is_string() || item == "") unsupported(config, key, "a list of module names");
    if (seen.insert(item.get<std::string>()).second) list.push_back(item.get<std::string>());
  }
  if (list.size() > kMaxNames)
    throw FormatError({.what = "a list of modules is too long",
                       .where = config.where() + ": " + key,
                       .got = std::to_string(list.size()) + " names",
                       .wanted = "at most " + std::to_string(kMaxNames)});
  return list;
}

bool is_all_linear(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "all-linear";
}

void read_targets(const JsonObject& file, lora::LoraConfig& config) {
  const std::string key = "target_modules";
  if (!file.has(key) || says_nothing(file.value(key)))
    throw FormatError({.what = "the adapter does not say which modules it targets",
                       .where = file.where() + ": " + key,
                       .wanted = "a list of module names or a regular expression"});
  const Json& value = file.value(key);
  if (!value.is_string())
    config.target_modules = strings(file, key);
  else if (is_all_linear(value))
    config.target_modules = {"all-linear"};
  else
    config.target_regex = value.get<std::string>();
  if (!file.has("exclude_modules") || says_nothing(file.value("exclude_modules"))) return;
  if (file.value("exclude_modules").is_string())
    config.exclude_regex = file.string("exclude_modules");
  else
    config.exclude_modules = strings(file, "exclude_modules");
}

// What PEFT itself refuses is refused: both keys with a regular expression, and a pattern without layers.
void read_layers(const JsonObject& file, lora::LoraConfig& config) {
  const std::string key = "layers_to_transform", pattern_key = "layers_pattern";
  for (const std::string& name : {key, pattern_key})
    if (config.target_regex && file.has(name))
      unsupported(file, name, "null beside a regular expression in target_modules, as in PEFT");
  if (file.has(pattern_key) && !says_nothing(file.value(pattern_key))) {
    config.layers_pattern =
        file.value(pattern_key).is_string() ? std::vector{file.string(pattern_key)} : strings(file, pattern_key);
    if (!file.has(key)) unsupported(file, pattern_key, "null where layers_to_transform is, as in PEFT");
  }
  if (!file.has(key) || (file.value(key).is_array() && file.value(key).empty())) return;
  const Json list = file.value(key).is_array() ? file.value(key) : Json::array({file.value(key)});
  config.layers_to_transform.emplace();
  for (const Json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      unsupported(file, key, "a layer number or a list of them");
    config.layers_to_transform->push_back(layer.get<int64_t>());
  }
}

int64_t checked_rank(const JsonObject& file, const std::string& key, const Json& value) {
  const bool valid = value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= lora::kMaxRank;
  if (!valid) unsupported(file, key, "an integer from 1 to " + std::to_string(lora::kMaxRank));
  return value.get<int64_t>();
}

double checked_alpha(const JsonObject& file, const std::string& key, const Json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0)
    unsupported(file, key, "a number above 0");
  return value.get<double>();
}

// `ordered` is the same file with its keys in the order they are written.
void read_patterns(const JsonObject& file, const OrderedJson& ordered, lora::LoraConfig& config) {
  const auto pattern = [&](const std::string& key, const auto& add) {
    if (!file.has(key)) return;
    if (!file.value(key).is_object()) unsupported(file, key, "an object of module patterns");
    for (const auto& item : ordered[key].items()) add(key, item.key(), file.value(key)[item.key()]);
  };
  pattern("rank_pattern", [&](const std::string& key, const std::string& module, const Json& value) {
    config.rank_pattern.emplace_back(module, checked_rank(file, key, value));
  });
  pattern("alpha_pattern", [&](const std::string& key, const std::string& module, const Json& value) {
    config.alpha_pattern.emplace_back(module, checked_alpha(file, key, value));
  });
}

void check_kind(const JsonObject& file) {
  if (const std::string type = file.string("peft_type"); type != "LORA") {
    const auto known = std::ranges::find(other_peft_types(), type, &PeftType::name);
    unsupported(file, "peft_type", "LORA", known == other_peft_types().end() ? "" : std::string(known->attempt));
  }
  const std::string task = file.string("task_type", "CAUSAL_LM");
  if (task != "CAUSAL_LM" && task != kValueTask)
    unsupported(file, "task_type", "CAUSAL_LM, null, or TOKEN_CLS with one label: the value head of a critic");
}

// PEFT names both heads that models for token classification may have, whichever there is.
void read_value_head(const JsonObject& file, lora::LoraConfig& config) {
  if (file.string("task_type", "CAUSAL_LM") != kValueTask) return;
  config.value_width = 1;
  std::erase(config.modules_to_save, kValueHead);
  std::erase(config.modules_to_save, "classifier");
}

// Initializations that leave the base as it is say nothing of the file's factors.
void read_init(const JsonObject& file, lora::LoraConfig& config) {
  const std::string key = "init_lora_weights";
  if (!file.has(key)) return;
  if (file.value(key).is_boolean()) {
    config.init.method = file.boolean(key, true) ? lora::InitMethod::standard : lora::InitMethod::random;
    return;
  }
  const std::string name = file.string(key);
  config.freezes_b = name == "mica";
  if (name == "eva" || name == "mica") return;  // B or A is zero, and the base is as it was
  const std::optional<lora::LoraInit> init = lora::lora_init_of(name);
  if (!init || init->changes_base())
    unsupported(file, key, "true, false, gaussian, orthogonal, eva or mica",
                "these factors belong to a base less their first values: save with PEFT's "
                "path_initial_model_for_weight_conversion, which makes a plain adapter; or, to go with a base that was "
                "saved so, say true here");
  config.init = *init;
}

// What is trained beside factors.
void read_own_tensors(const JsonObject& file, lora::LoraConfig& config) {
  config.use_dora = file.boolean("use_dora", false);
  const std::optional<lora::TrainedBiases> biases = lora::trained_biases_of(file.string("bias", "none"));
  if (!biases) unsupported(file, "bias", "none, lora_only or all");
  config.bias = *biases;
  config.modules_to_save = strings(file, "modules_to_save");
}

void check_other_keys(const JsonObject& file) {
  for (const auto& item : file.json().items()) {
    const PeftKey* const known = find_peft_key(item.key());
    if (known != nullptr && known->use != KeyUse::refused) continue;
    if (says_nothing(item.value())) continue;
    unsupported(file, item.key(), "null, false or empty",
                known != nullptr ? std::string(known->attempt) : "an adapter made without " + item.key());
  }
}

OrderedJson number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

lora::LoraConfig parse_peft_config(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonObject file(json, where);
  check_kind(file);
  check_other_keys(file);
  lora::LoraConfig config;
  config.file = where;
  config.type = lora::LoraType::canonical;
  config.rank = file.has("r") ? checked_rank(file, "r", file.value("r")) : 8;
  config.alpha = file.has("lora_alpha") ? checked_alpha(file, "lora_alpha", file.value("lora_alpha")) : 8;
  config.dropout = file.number("lora_dropout", 0);
  if (!(config.dropout >= 0 && config.dropout < 1)) unsupported(file, "lora_dropout", "at least 0 and less than 1");
  config.use_rslora = file.boolean("use_rslora", false);
  read_init(file, config);
  read_own_tensors(file, config);
  read_value_head(file, config);
  read_targets(file, config);
  read_layers(file, config);
  read_patterns(file, OrderedJson::parse(text), config);
  return config;
}

std::string peft_config_text(const lora::LoraConfig& config, const std::vector<std::string>& target_modules,
                             const std::string& base_model_name) {
  const auto pattern = [](const auto& entries) {
    OrderedJson object = OrderedJson::object();
    for (const auto& [module, value] : entries) object[module] = number(static_cast<double>(value));
    return object;
  };
  OrderedJson json = OrderedJson::object();
  json["alpha_pattern"] = pattern(config.alpha_pattern);
  json["base_model_name_or_path"] = base_model_name;
  json["bias"] = lora::trained_biases_name(config.bias);
  json["exclude_modules"] = config.exclude_modules.empty() ? OrderedJson() : OrderedJson(config.exclude_modules);
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["layers_pattern"] = nullptr;
  json["layers_to_transform"] = config.layers_to_transform ? OrderedJson(*config.layers_to_transform) : OrderedJson();
  json["lora_alpha"] = number(config.alpha);
  json["lora_dropout"] = config.dropout;
  std::vector<std::string> saved = config.modules_to_save;
  if (config.value_width > 0) saved.emplace_back(kValueHead);
  json["modules_to_save"] = saved.empty() ? OrderedJson() : OrderedJson(saved);
  json["peft_type"] = "LORA";
  json["r"] = config.rank;
  json["rank_pattern"] = pattern(config.rank_pattern);
  json["target_modules"] = target_modules;
  json["task_type"] = config.value_width > 0 ? kValueTask : "CAUSAL_LM";
  json["use_dora"] = config.use_dora;
  json["use_rslora"] = config.use_rslora;
  return json.dump(2, ' ', true, OrderedJson::error_handler_t::replace);
}

}  // namespace lockstep::checkpoint
