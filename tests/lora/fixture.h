// A model of two layers as lora sees it: width 24, q 32, k and v 16, feed-forward 40.
#pragma once

#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

inline int64_t qkv_site(int64_t layer) {
  return 4 * layer;
}
inline int64_t o_site(int64_t layer) {
  return 4 * layer + 1;
}
inline int64_t gate_up_site(int64_t layer) {
  return 4 * layer + 2;
}
inline int64_t down_site(int64_t layer) {
  return 4 * layer + 3;
}

inline std::vector<Module> tiny_modules(int64_t layers = 2) {
  std::vector<Module> modules;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto add = [&](const char* group, const char* leaf, int64_t site, int64_t in, int64_t out, int64_t begin) {
      modules.push_back({.name = "model.layers." + std::to_string(layer) + "." + group + "." + leaf,
                         .leaf = leaf,
                         .layer = layer,
                         .site = site,
                         .in = in,
                         .out = out,
                         .out_begin = begin});
    };
    add("self_attn", "q_proj", qkv_site(layer), 24, 32, 0);
    add("self_attn", "k_proj", qkv_site(layer), 24, 16, 32);
    add("self_attn", "v_proj", qkv_site(layer), 24, 16, 48);
    add("self_attn", "o_proj", o_site(layer), 32, 24, 0);
    add("mlp", "gate_proj", gate_up_site(layer), 24, 40, 0);
    add("mlp", "up_proj", gate_up_site(layer), 24, 40, 40);
    add("mlp", "down_proj", down_site(layer), 40, 24, 0);
  }
  return modules;
}

// The same with an embedding and a head of 50 tokens, and biases of q, k and v.
inline std::vector<Module> whole_modules() {
  std::vector<Module> modules = tiny_modules();
  for (Module& module : modules) {
    module.site += 2;
    module.has_bias = module.leaf == "q_proj" || module.leaf == "k_proj" || module.leaf == "v_proj";
  }
  modules.insert(
      modules.begin(),
      {{.name = "model.embed_tokens",
        .leaf = "embed_tokens",
        .layer = -1,
        .site = 0,
        .in = 50,
        .out = 24,
        .kind = ModuleKind::embedding},
       {.name = "lm_head", .leaf = "lm_head", .layer = -1, .site = 1, .in = 24, .out = 50, .kind = ModuleKind::head}});
  return modules;
}

inline LoraConfig tiny_config(LoraType type, std::vector<std::string> targets = {"all-linear"}) {
  return {.rank = 4,
          .alpha = 8,
          .type = type,
          .target_modules = std::move(targets),
          .target_regex = {},
          .exclude_modules = {},
          .layers_to_transform = {},
          .rank_pattern = {},
          .alpha_pattern = {}};
}

}  // namespace lockstep::lora
