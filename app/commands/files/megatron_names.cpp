#include "commands/files/megatron_names.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace lockstep::commands {

namespace {

const lora::MegatronModule& names_of(MegatronLinear linear) {
  return lora::kMegatronModules[static_cast<size_t>(linear)];
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
  const lora::MegatronModule& names = names_of(site.linear);
  return fmt::format("decoder.layers.{}.{}.{}", site.layer, names.block,
                     site.part ? names.targets[static_cast<size_t>(*site.part)] : names.name);
}

std::string megatron_tensor(const MegatronSite& site, bool is_a) {
  const lora::MegatronModule& names = names_of(site.linear);
  const std::string part = site.part ? fmt::format(".{}", names.adapters[static_cast<size_t>(*site.part)]) : "";
  return fmt::format("decoder.layers.{}.{}.{}.adapter{}.{}.weight", site.layer, names.block, names.name, part,
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
  const lora::MegatronModule& names = names_of(site.linear);
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
  const int parts = num_parts(linear);
  if (linear == MegatronLinear::qkv)
    for (int64_t group = 0; group < config.kv_heads; ++group) {
      rows.push_back({.part = 0, .begin = group * queries, .count = queries});
      rows.push_back({.part = 1, .begin = group * head, .count = head});
      rows.push_back({.part = 2, .begin = group * head, .count = head});
    }
  else
    for (int part = 0; part < parts; ++part)
      rows.push_back({.part = part, .count = parts > 1 ? config.ffn : config.width});
  return rows;
}

}  // namespace lockstep::commands
