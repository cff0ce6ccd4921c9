// What differs between the architecture families: defaults of missing keys (transformers' configuration_*.py) and the
// keys only one of them has.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"

namespace lockstep::model {

struct FamilyDefaults {
  int64_t vocab_size, width, ffn, layers, heads;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: width / heads
  int64_t max_positions;
};

// The family's own keys, after the common ones are in `config`; sets biases, q/k norm and windows.
struct FamilyRules {
  std::string model_type;
  FamilyDefaults defaults;
  std::vector<std::string> keys;  // read by `apply`
  void (*apply)(ModelSpec& config, const JsonObject& json);
};

std::span<const FamilyRules> families();  // all of them; families.cpp is the list

// layer_types: one of "full_attention", "sliding_attention" per layer. Empty when the key is absent. FormatError.
std::vector<bool> sliding_layers(const ModelSpec& config, const JsonObject& json);

// Qwen: sliding only when use_sliding_window, in the layers that layer_types or max_window_layers say.
void apply_qwen_windows(ModelSpec& config, const JsonObject& json);

}  // namespace lockstep::model
