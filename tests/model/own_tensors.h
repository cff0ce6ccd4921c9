// Adapters that train more than factors of the blocks' linear layers.
#pragma once

#include <string>
#include <vector>

#include "model/adapter_extras.h"
#include "model/train_case.h"

namespace lockstep::model {

struct OwnCase {
  const char* name;
  lora::LoraConfig config;
};

inline lora::LoraConfig own_config(std::vector<std::string> targets) {
  lora::LoraConfig config;
  config.rank = 3;
  config.alpha = 4;
  config.type = lora::LoraType::canonical;
  config.target_modules = std::move(targets);
  return config;
}

inline std::vector<OwnCase> own_cases() {
  std::vector<OwnCase> cases = {
      {"embedding and head", own_config({"all-linear", "embed_tokens", "lm_head"})},
      {"head", own_config({"lm_head"})},
      {"embedding", own_config({"embed_tokens"})},
      {"magnitudes", own_config({"all-linear", "lm_head"})},
      {"magnitudes of fused pairs", own_config({"all-linear"})},
      {"biases of targets", own_config({"q_proj", "down_proj"})},
      {"all biases", own_config({"layers.2.mlp.up_proj"})},
      {"saved", own_config({"v_proj"})},
      {"saved head", own_config({"layers.1.self_attn.o_proj"})},
      {"subtracted", own_config({"all-linear", "embed_tokens", "lm_head"})},
      {"everything", own_config({"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"})},
  };
  cases[3].config.use_dora = true;
  cases[4].config.use_dora = true, cases[4].config.type = lora::LoraType::fused;
  cases[5].config.bias = lora::TrainedBiases::lora_only;
  cases[6].config.bias = lora::TrainedBiases::all;
  cases[7].config.modules_to_save = {"embed_tokens", "lm_head"};
  cases[8].config.modules_to_save = {"lm_head"};
  cases[9].config.subtracts_initial = true;
  lora::LoraConfig& everything = cases[10].config;
  everything.use_dora = true, everything.bias = lora::TrainedBiases::all, everything.subtracts_initial = true;
  everything.modules_to_save = {"embed_tokens"};
  return cases;
}

// Random values, in host memory; magnitudes near 1, some of them negative.
inline lora::AdapterVersion own_adapter(const ModelSpec& config, const lora::LoraConfig& lora, uint32_t which) {
  auto layout = lora::resolve_layout(lora, linear_modules(config));
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(layout->num_floats) * sizeof(float));
  for (int64_t i = 0; i < layout->num_floats; ++i)
    weights->f32()[i] = 0.25f * drawn(2000 + which, static_cast<uint32_t>(i));
  for (const lora::OwnTensors& own : layout->own)
    for (int64_t i = 0; own.magnitude != lora::kAbsent && i < own.module.out; ++i)
      weights->f32()[own.magnitude + i] = (i % 7 == 3 ? -1.5f : 1.5f) + weights->f32()[own.magnitude + i];
  return {.policy = {"a", which}, .layout = std::move(layout), .weights = std::move(weights)};
}

}  // namespace lockstep::model
