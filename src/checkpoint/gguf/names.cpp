#include "checkpoint/gguf/names.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.model_type = "llama", .name = "llama", .interleaved_rotary = true, .output_bias = true},
    {.model_type = "mistral", .name = "llama", .interleaved_rotary = true, .output_bias = true},
    {.model_type = "qwen2", .name = "qwen2", .interleaved_rotary = false, .output_bias = false},
    {.model_type = "qwen3", .name = "qwen3", .interleaved_rotary = false, .output_bias = false},
};

struct Names {
  std::string_view hf, gguf;
  bool rotary = false;
};

constexpr Names kWholeModel[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};

// The rest of a name after "model.layers.N." and "blk.N.".
constexpr Names kOfALayer[] = {{"input_layernorm", "attn_norm"},     {"self_attn.q_proj", "attn_q", true},
                               {"self_attn.k_proj", "attn_k", true}, {"self_attn.v_proj", "attn_v"},
                               {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"},
                               {"self_attn.o_proj", "attn_output"},  {"post_attention_layernorm", "ffn_norm"},
                               {"mlp.gate_proj", "ffn_gate"},        {"mlp.up_proj", "ffn_up"},
                               {"mlp.down_proj", "ffn_down"}};

constexpr std::string_view kLayers = "model.layers.";

template <size_t N>
const Names* find(const Names (&table)[N], std::string_view hf) {
  const auto* found = std::ranges::find(table, hf, &Names::hf);
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

const GgufArchitecture& gguf_architecture(std::string_view model_type, const std::string& where) {
  for (const GgufArchitecture& architecture : kArchitectures)
    if (architecture.model_type == model_type) return architecture;
  throw FormatError({.what = "this architecture has no GGUF names here",
                     .where = where,
                     .got = std::string(model_type),
                     .wanted = "llama, mistral, qwen2 or qwen3"});
}

GgufModule gguf_module(const std::string& module) {
  if (const Names* names = find(kWholeModel, module)) return {std::string(names->gguf), names->rotary};
  if (module.starts_with(kLayers)) {
    const size_t dot = module.find('.', kLayers.size());
    const std::string layer = module.substr(kLayers.size(), dot - kLayers.size());
    const bool is_number =
        !layer.empty() && std::ranges::all_of(layer, [](unsigned char c) { return std::isdigit(c); });
    if (dot != std::string::npos && is_number)
      if (const Names* names = find(kOfALayer, std::string_view(module).substr(dot + 1)))
        return {"blk." + layer + "." + std::string(names->gguf), names->rotary};
  }
  throw FormatError({.what = "a module has no GGUF name here", .where = module});
}

GgufModule gguf_tensor(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string::npos) throw FormatError({.what = "a tensor has no GGUF name here", .where = tensor});
  GgufModule module = gguf_module(tensor.substr(0, dot));
  module.name += tensor.substr(dot);
  return module;
}

int64_t gguf_source_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, entry = row % head_dim;
  return head * head_dim + entry % 2 * (head_dim / 2) + entry / 2;
}

}  // namespace lockstep::checkpoint
