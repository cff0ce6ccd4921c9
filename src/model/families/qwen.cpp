#include "model/families/family.h"

namespace lockstep::model {

void apply_qwen_windows(ModelSpec& config, const JsonObject& json) {
  const bool sliding = json.boolean("use_sliding_window", false);
  const int64_t window = json.json().contains("sliding_window") ? json.integer("sliding_window", 0) : 4096;
  const int64_t first = json.integer("max_window_layers", 28);
  std::vector<bool> layers = sliding_layers(config, json);
  if (layers.empty())
    for (int64_t i = 0; i < config.layers; ++i) layers.push_back(sliding && window != 0 && i >= first);
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!layers[static_cast<size_t>(i)]) continue;
    if (!sliding || window < 1)
      throw FormatError({.what = "a sliding layer without a window",
                         .where = json.where() + ": layer_types",
                         .got = "use_sliding_window " + std::string(sliding ? "true" : "false") + ", sliding_window " +
                                std::to_string(window),
                         .wanted = "use_sliding_window true and a positive sliding_window"});
    config.window[static_cast<size_t>(i)] = window;
  }
}

FamilyRules qwen2_rules() {
  return {.model_type = "qwen2",
          .defaults = {.vocab_size = 151936,
                       .width = 4096,
                       .ffn = 22016,
                       .layers = 32,
                       .heads = 32,
                       .kv_heads = 32,
                       .head_dim = 0,
                       .max_positions = 32768},
          .keys = {"use_sliding_window", "sliding_window", "max_window_layers"},
          .apply = [](ModelSpec& config, const JsonObject& json) {
            config.qkv_bias = true;
            apply_qwen_windows(config, json);
          }};
}

FamilyRules qwen3_rules() {
  return {.model_type = "qwen3",
          .defaults = {.vocab_size = 151936,
                       .width = 4096,
                       .ffn = 22016,
                       .layers = 32,
                       .heads = 32,
                       .kv_heads = 32,
                       .head_dim = 128,
                       .max_positions = 32768},
          .keys = {"use_sliding_window", "sliding_window", "max_window_layers", "attention_bias"},
          .apply = [](ModelSpec& config, const JsonObject& json) {
            config.qk_norm = true;
            config.qkv_bias = config.o_bias = json.boolean("attention_bias", false);
            apply_qwen_windows(config, json);
          }};
}

}  // namespace lockstep::model
