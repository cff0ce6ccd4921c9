#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "core/error.h"
#include "model/families/family.h"
#include "model/rope_config.h"

namespace lockstep::model {

namespace {

// Keys that change nothing in what this program computes, whatever their value.
constexpr std::string_view kHarmless[] = {"_attn_implementation",
                                          "_attn_implementation_autoset",
                                          "_model_name_or_path",
                                          "_name_or_path",
                                          "architectures",
                                          "bos_token_id",
                                          "dtype",
                                          "eos_token_id",
                                          "id2label",
                                          "initializer_range",
                                          "is_llama_config",
                                          "label2id",
                                          "max_window_layers",
                                          "model_type",
                                          "pad_token_id",
                                          "pretraining_tp",
                                          "return_dict",
                                          "tokenizer_class",
                                          "torch_dtype",
                                          "transformers.js_config",
                                          "transformers_version",
                                          "unk_token_id",
                                          "unsloth_fixed",
                                          "unsloth_version",
                                          "use_cache"};

constexpr std::string_view kCommon[] = {"head_dim",
                                        "hidden_act",
                                        "hidden_size",
                                        "intermediate_size",
                                        "layer_types",
                                        "max_position_embeddings",
                                        "num_attention_heads",
                                        "num_hidden_layers",
                                        "num_key_value_heads",
                                        "partial_rotary_factor",
                                        "rms_norm_eps",
                                        "rope_parameters",
                                        "rope_scaling",
                                        "rope_theta",
                                        "tie_word_embeddings",
                                        "vocab_size"};

// Their default is the only value that this program implements.
constexpr std::string_view kZero[] = {"attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

bool listed(std::span<const std::string_view> keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void refuse_unknown_keys(const JsonObject& json, const FamilyRules& rules) {
  for (const auto& [key, value] : json.json().items()) {
    if (is_nothing(value) || listed(kHarmless, key) || listed(kCommon, key)) continue;
    if (std::find(rules.keys.begin(), rules.keys.end(), key) != rules.keys.end()) continue;
    if (listed(kZero, key) && value.is_number() && value == 0) continue;
    const bool quantized = key == "quantization_config";
    throw FormatError(
        {.what = quantized ? "this model is quantized" : "config.json has a key this program does not know",
         .where = json.where() + ": " + key,
         .got = value.dump().substr(0, 100),
         .wanted = quantized ? "bf16, f16 or f32 weights" : "null, false, or no such key",
         .attempt = quantized ? "the unquantized model" : ""});
  }
}

int64_t in_range(const JsonObject& json, std::string_view key, int64_t value, int64_t largest) {
  if (value < 1 || value > largest)
    throw FormatError({.what = "impossible model size",
                       .where = json.where() + ": " + std::string(key),
                       .got = std::to_string(value),
                       .wanted = "1 to " + std::to_string(largest)});
  return value;
}

int64_t size_key(const JsonObject& json, std::string_view key, int64_t fallback, int64_t largest) {
  return in_range(json, key, json.integer(key, fallback), largest);
}

void read_sizes(ModelSpec& c, const JsonObject& json, const FamilyDefaults& defaults) {
  c.vocab_size = size_key(json, "vocab_size", defaults.vocab_size, int64_t{1} << 24);
  c.width = size_key(json, "hidden_size", defaults.width, 1 << 17);
  c.ffn = size_key(json, "intermediate_size", defaults.ffn, 1 << 20);
  c.layers = size_key(json, "num_hidden_layers", defaults.layers, 1 << 12);
  c.heads = size_key(json, "num_attention_heads", defaults.heads, 1 << 12);
  // null means as many as heads in every family; an absent key is the family's default.
  const bool absent = !json.json().contains("num_key_value_heads");
  const int64_t kv_default = absent && defaults.kv_heads ? defaults.kv_heads : c.heads;
  c.kv_heads = size_key(json, "num_key_value_heads", kv_default, 1 << 12);
  if (c.heads % c.kv_heads != 0)
    throw FormatError({.what = "query heads cannot be shared out over key/value heads",
                       .where = json.where() + ": num_key_value_heads",
                       .got = std::to_string(c.kv_heads),
                       .wanted = "a divisor of num_attention_heads = " + std::to_string(c.heads)});
  const bool own_head_dim = json.has("head_dim") || (defaults.head_dim && !json.json().contains("head_dim"));
  if (!own_head_dim && c.width % c.heads != 0)
    throw FormatError({.what = "hidden_size cannot be shared out over heads",
                       .where = json.where() + ": hidden_size",
                       .got = std::to_string(c.width),
                       .wanted = "a multiple of num_attention_heads = " + std::to_string(c.heads) + ", or head_dim"});
  c.head_dim = own_head_dim ? size_key(json, "head_dim", defaults.head_dim, 1 << 12) : c.width / c.heads;
  if (c.head_dim % 2 != 0)
    throw FormatError({.what = "rotary embedding needs an even head_dim",
                       .where = json.where() + ": head_dim",
                       .got = std::to_string(c.head_dim)});
  c.max_positions = size_key(json, "max_position_embeddings", defaults.max_positions, int64_t{1} << 31);
  const double eps = json.number("rms_norm_eps", 1e-6);
  if (!(eps > 0 && eps < 1))
    throw FormatError({.what = "impossible norm epsilon",
                       .where = json.where() + ": rms_norm_eps",
                       .got = std::to_string(eps),
                       .wanted = "between 0 and 1"});
  c.norm_eps = static_cast<float>(eps);
}

const FamilyRules& rules_of(const JsonObject& json) {
  const std::string type = json.string("model_type");
  std::string known;
  for (const FamilyRules& rules : families()) {
    if (type == rules.model_type) return rules;
    known += (known.empty() ? "" : ", ") + rules.model_type;
  }
  throw FormatError({.what = "this architecture is not supported",
                     .where = json.where() + ": model_type",
                     .got = type,
                     .wanted = "one of " + known});
}

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyRules& rules : families()) names.push_back(rules.model_type);
  return names;
}

std::vector<bool> sliding_layers(const ModelSpec& config, const JsonObject& json) {
  std::vector<bool> sliding;
  if (!json.has("layer_types")) return sliding;
  const Json& types = json.value("layer_types");
  const std::string where = json.where() + ": layer_types";
  if (!types.is_array() || types.size() != static_cast<size_t>(config.layers))
    throw FormatError(
        {.what = "layer_types does not describe every layer",
         .where = where,
         .got = types.is_array() ? std::to_string(types.size()) + " entries" : types.dump().substr(0, 100),
         .wanted = "a list of num_hidden_layers = " + std::to_string(config.layers) + " names"});
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      throw FormatError({.what = "unknown kind of layer",
                         .where = where,
                         .got = type.dump().substr(0, 100),
                         .wanted = "full_attention or sliding_attention"});
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

ModelSpec parse_config(const Json& config, const std::string& where) {
  const JsonObject json(config, where);
  const FamilyRules& rules = rules_of(json);
  refuse_unknown_keys(json, rules);
  ModelSpec c;
  c.family = rules.model_type;
  read_sizes(c, json, rules.defaults);
  const std::string activation = json.string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    throw FormatError({.what = "this activation is not supported",
                       .where = where + ": hidden_act",
                       .got = activation,
                       .wanted = "silu"});
  c.tied_head = json.boolean("tie_word_embeddings", false);
  c.rope = parse_rope(json, c.max_positions);
  c.window.assign(static_cast<size_t>(c.layers), 0);
  rules.apply(c, json);

  const std::vector<bool> sliding = sliding_layers(c, json);
  for (size_t i = 0; i < sliding.size(); ++i)
    if (sliding[i] != (c.window[i] != 0))
      throw FormatError({.what = "layer_types contradicts the sliding window",
                         .where = where + ": layer_types",
                         .got = "layer " + std::to_string(i) + " is " + (sliding[i] ? "sliding" : "full"),
                         .wanted = c.window[i] ? "a window of " + std::to_string(c.window[i]) : "full attention"});
  return c;
}

}  // namespace lockstep::model
