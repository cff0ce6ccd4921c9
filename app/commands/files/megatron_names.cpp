#include "commands/files/megatron_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace lockstep::commands {

namespace {

struct LinearNames {
  const char* block;   // Megatron's
  const char* module;  // Megatron's
  const char* hf_block;
  int parts;
  std::array<const char*, 3> targets;   // Megatron's of the parts
  std::array<const char*, 3> adapters;  // sub-adapters of CanonicalLoRA
  std::array<const char*, 3> leaves;    // Hugging Face's
};

// In the order of MegatronLinear.
constexpr LinearNames kLinearNames[] = {
    {"self_attention",
     "linear_qkv",
     "self_attn",
     3,
     {"linear_q", "linear_k", "linear_v"},
     {"adapter_q", "adapter_k", "adapter_v"},
     {"q_proj", "k_proj", "v_proj"}},
    {"self_attention", "linear_proj", "self_attn", 1, {}, {}, {"o_proj"}},
    {"mlp",
     "linear_fc1",
     "mlp",
     2,
     {"linear_fc1_gate", "linear_fc1_up"},
     {"adapter_gate", "adapter_up"},
     {"gate_proj", "up_proj"}},
    {"mlp", "linear_fc2", "mlp", 1, {}, {}, {"down_proj"}},
};

const LinearNames& names_of(MegatronLinear linear) {
  return kLinearNames[static_cast<size_t>(linear)];
}

// Takes `word` from the beginning.
bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::optional<int64_t> take_layer(std::string_view& text) {
  int64_t layer = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (failed != std::errc() || layer < 0 || layer > 1 << 16) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (!take(text, ".")) return std::nullopt;
  return layer;
}

}  // namespace

int num_parts(MegatronLinear linear) {
  return names_of(linear).parts;
}

std::string megatron_module(const MegatronSite& site) {
  const LinearNames& names = names_of(site.linear);
  return fmt::format("decoder.layers.{}.{}.{}", site.layer, names.block,
                     site.part ? names.targets[static_cast<size_t>(*site.part)] : names.module);
}

std::string megatron_tensor(const MegatronSite& site, bool is_a) {
  const LinearNames& names = names_of(site.linear);
  const std::string part = site.part ? std::string(".") + names.adapters[static_cast<size_t>(*site.part)] : "";
  return fmt::format("decoder.layers.{}.{}.{}.adapter{}.{}.weight", site.layer, names.block, names.module, part,
                     is_a ? "linear_in" : "linear_out");
}

std::optional<MegatronFactor> parse_megatron_tensor(std::string_view name) {
  while (take(name, "module.")) {
  }
  MegatronFactor factor;
  if (!take(name, "decoder.layers.")) return std::nullopt;
  const std::optional<int64_t> layer = take_layer(name);
  if (!layer) return std::nullopt;
  // The rest is compared with what this layer's names can be.
  for (int linear = 0; linear < kMegatronLinears; ++linear)
    for (int part = -1; part < 3; ++part)
      for (const bool is_a : {true, false}) {
        const auto p = static_cast<MegatronLinear>(linear);
        if (part >= 0 && (num_parts(p) == 1 || part >= num_parts(p))) continue;
        factor = {.site = {.layer = *layer, .linear = p, .part = part < 0 ? std::nullopt : std::optional(part)},
                  .is_a = is_a};
        if (megatron_tensor(factor.site, is_a) == fmt::format("decoder.layers.{}.{}", *layer, name)) return factor;
      }
  return std::nullopt;
}

std::string hf_module(const MegatronSite& site) {
  const LinearNames& names = names_of(site.linear);
  return fmt::format("model.layers.{}.{}.{}", site.layer, names.hf_block,
                     names.leaves[static_cast<size_t>(site.part.value_or(0))]);
}

std::optional<MegatronSite> parse_hf_module(const std::string& name) {
  std::string_view rest = name;
  if (!take(rest, "model.layers.")) return std::nullopt;
  const std::optional<int64_t> layer = take_layer(rest);
  if (!layer) return std::nullopt;
  for (int linear = 0; linear < kMegatronLinears; ++linear) {
    const auto p = static_cast<MegatronLinear>(linear);
    for (int part = 0; part < num_parts(p); ++part) {
      MegatronSite site{.layer = *layer, .linear = p, .part = num_parts(p) == 1 ? std::nullopt : std::optional(part)};
      if (hf_module(site) == name) return site;
    }
  }
  return std::nullopt;
}

std::vector<PartRows> fused_rows(MegatronLinear linear, const model::ModelSpec& config) {
  std::vector<PartRows> rows;
  const int64_t head = config.head_dim, queries = config.heads / config.kv_heads * head;
  switch (linear) {
    case MegatronLinear::qkv:
      for (int64_t group = 0; group < config.kv_heads; ++group) {
        rows.push_back({.part = 0, .begin = group * queries, .count = queries});
        rows.push_back({.part = 1, .begin = group * head, .count = head});
        rows.push_back({.part = 2, .begin = group * head, .count = head});
      }
      break;
    case MegatronLinear::fc1: rows = {{.part = 0, .count = config.ffn}, {.part = 1, .count = config.ffn}}; break;
    case MegatronLinear::proj:
    case MegatronLinear::fc2: rows = {{.part = 0, .count = config.width}}; break;
  }
  return rows;
}

}  // namespace lockstep::commands
