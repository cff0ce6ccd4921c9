#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/spec.h"

namespace lockstep::model {

namespace {

const char* rope_name(RopeType type) {
  switch (type) {
    case RopeType::standard: return "standard";
    case RopeType::linear: return "linear";
    case RopeType::llama3: return "llama3";
  }
  return "?";
}

}  // namespace

std::string canonical_text(const ModelSpec& config) {
  std::string text;
  const auto add = [&text](const char* name, const auto& value) { text += fmt::format("{} {}\n", name, value); };
  add("vocab_size", config.vocab_size);
  add("width", config.width);
  add("layers", config.layers);
  add("heads", config.heads);
  add("kv_heads", config.kv_heads);
  add("head_dim", config.head_dim);
  add("ffn", config.ffn);
  add("norm_eps", config.norm_eps);
  add("rope", rope_name(config.rope.type));
  add("rope_theta", config.rope.theta);
  if (config.rope.type != RopeType::standard) add("rope_factor", config.rope.factor);
  if (config.rope.type == RopeType::llama3) {
    add("rope_low_freq_factor", config.rope.low_freq_factor);
    add("rope_high_freq_factor", config.rope.high_freq_factor);
    add("rope_original_max_positions", config.rope.original_max_positions);
  }
  add("tied_head", config.tied_head);
  add("qkv_bias", config.qkv_bias);
  add("o_bias", config.o_bias);
  add("mlp_bias", config.mlp_bias);
  add("qk_norm", config.qk_norm);
  add("window", fmt::format("{}", fmt::join(config.window, ",")));
  return text;
}

}  // namespace lockstep::model
