// Megatron's linear modules of a layer, which Megatron-Bridge's LoRA and CanonicalLoRA name, beside Hugging Face's.
#pragma once

#include <array>
#include <string_view>

namespace lockstep::lora {

// In the order of forward, as kMegatronModules.
enum class MegatronLinear { qkv, proj, fc1, fc2 };

struct MegatronModule {
  std::string_view block, name;            // "self_attention", "linear_qkv"
  std::string_view hf_block;               // "self_attn"
  int parts = 1;                           // Hugging Face modules that it is made of
  std::array<std::string_view, 3> leaves;  // their last names
  // Of a module with several parts: what a target of one part is called, and its adapter (CanonicalLoRA).
  std::array<std::string_view, 3> targets = {}, adapters = {};
};

inline constexpr MegatronModule kMegatronModules[] = {
    {.block = "self_attention",
     .name = "linear_qkv",
     .hf_block = "self_attn",
     .parts = 3,
     .leaves = {"q_proj", "k_proj", "v_proj"},
     .targets = {"linear_q", "linear_k", "linear_v"},
     .adapters = {"adapter_q", "adapter_k", "adapter_v"}},
    {.block = "self_attention", .name = "linear_proj", .hf_block = "self_attn", .leaves = {"o_proj"}},
    {.block = "mlp",
     .name = "linear_fc1",
     .hf_block = "mlp",
     .parts = 2,
     .leaves = {"gate_proj", "up_proj"},
     .targets = {"linear_fc1_gate", "linear_fc1_up"},
     .adapters = {"adapter_gate", "adapter_up"}},
    {.block = "mlp", .name = "linear_fc2", .hf_block = "mlp", .leaves = {"down_proj"}},
};

}  // namespace lockstep::lora
