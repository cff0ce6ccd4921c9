// How Megatron (Megatron-Bridge's LoRA and CanonicalLoRA) names and lays out the factors of an adapter.
//
//   Hugging Face, PEFT                           Megatron: decoder.layers.N. ...
//   self_attn.q_proj, k_proj, v_proj             self_attention.linear_qkv
//   self_attn.o_proj                             self_attention.linear_proj
//   mlp.gate_proj, up_proj                       mlp.linear_fc1
//   mlp.down_proj                                mlp.linear_fc2
//   lora_A.weight [r, in]                        .adapter.linear_in.weight
//   lora_B.weight [out, r]                       .adapter.linear_out.weight
//
// LoRA has one pair for a fused module: its A is that of every part, its B holds the rows of all parts: of linear_qkv
// group by group the query heads of the group, its key head, its value head; of linear_fc1 first gate, then up (as
// gathered from one tensor-parallel rank). CanonicalLoRA has a pair for each part, rows as in Hugging Face:
// .adapter.adapter_q.linear_in.weight, adapter_k, adapter_v, adapter_gate, adapter_up.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora/megatron_names.h"
#include "model/spec.h"

namespace lockstep::commands {

using lora::MegatronLinear;
inline constexpr int kMegatronLinears = static_cast<int>(std::size(lora::kMegatronModules));

// A module of one layer; `part`: of a fused one (q 0, k 1, v 2; gate 0, up 1), nothing: the module as a whole.
struct MegatronSite {
  int64_t layer = 0;
  MegatronLinear linear = MegatronLinear::qkv;
  std::optional<int> part;
  bool operator==(const MegatronSite&) const = default;
};

int num_parts(MegatronLinear linear);  // 3, 1, 2, 1

// "decoder.layers.0.self_attention.linear_qkv", of a part "....linear_q": as target modules are named.
std::string megatron_module(const MegatronSite& site);
// "decoder.layers.0.self_attention.linear_qkv.adapter.adapter_q.linear_in.weight"
std::string megatron_tensor(const MegatronSite& site, bool is_a);
// Also behind any number of "module."; nothing: no name of an adapter's factor.
struct MegatronFactor {
  MegatronSite site;
  bool is_a = false;
};
std::optional<MegatronFactor> parse_megatron_tensor(std::string_view name);

// "model.layers.0.self_attn.q_proj". A site without a part must be of a module with one.
std::string hf_module(const MegatronSite& site);
// Of such a name; nothing: a module that Megatron has no name for here.
std::optional<MegatronSite> parse_hf_module(const std::string& name);

// The rows of a fused module's B, in order: `count` rows of a part from `begin` on.
struct PartRows {
  int part = 0;
  int64_t begin = 0, count = 0;
};
std::vector<PartRows> fused_rows(MegatronLinear linear, const model::ModelSpec& config);

}  // namespace lockstep::commands
