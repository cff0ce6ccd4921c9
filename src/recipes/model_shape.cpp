#include "recipes/model_shape.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "recipes/base.h"

namespace lockstep::recipes {

namespace {

double number(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size())
    throw ConfigError({.what = "not a number", .where = "--" + flag, .got = text});
  return value;
}

const std::map<std::string, std::function<double(const model::ModelSpec&)>>& numbers() {
  using model::ModelSpec;
  static const std::map<std::string, std::function<double(const ModelSpec&)>> table = {
      {"num-layers", [](const ModelSpec& c) { return static_cast<double>(c.layers); }},
      {"hidden-size", [](const ModelSpec& c) { return static_cast<double>(c.width); }},
      {"ffn-hidden-size", [](const ModelSpec& c) { return static_cast<double>(c.ffn); }},
      {"num-attention-heads", [](const ModelSpec& c) { return static_cast<double>(c.heads); }},
      {"num-query-groups", [](const ModelSpec& c) { return static_cast<double>(c.kv_heads); }},
      {"kv-channels", [](const ModelSpec& c) { return static_cast<double>(c.head_dim); }},
      {"vocab-size", [](const ModelSpec& c) { return static_cast<double>(c.vocab_size); }},
      {"max-position-embeddings", [](const ModelSpec& c) { return static_cast<double>(c.max_positions); }},
      {"rotary-base", [](const ModelSpec& c) { return c.rope.theta; }},
      {"rotary-percent", [](const ModelSpec&) { return 1.0; }},
      {"norm-epsilon", [](const ModelSpec& c) { return static_cast<double>(c.norm_eps); }},
  };
  return table;
}

const std::map<std::string, std::function<bool(const model::ModelSpec&)>>& switches() {
  using model::ModelSpec;
  static const std::map<std::string, std::function<bool(const ModelSpec&)>> table = {
      {"swiglu", [](const ModelSpec&) { return true; }},
      {"qk-layernorm", [](const ModelSpec& c) { return c.qk_norm; }},
      {"add-qkv-bias", [](const ModelSpec& c) { return c.qkv_bias; }},
      {"untie-embeddings-and-output-weights", [](const ModelSpec& c) { return !c.tied_head; }},
      {"group-query-attention", [](const ModelSpec&) { return true; }},
      {"disable-bias-linear", [](const ModelSpec& c) { return !c.o_bias && !c.mlp_bias; }},
      {"use-rotary-position-embeddings", [](const ModelSpec&) { return true; }},
  };
  return table;
}

const std::map<std::string, std::string>& texts() {
  static const std::map<std::string, std::string> table = {{"normalization", "RMSNorm"},
                                                           {"position-embedding-type", "rope"}};
  return table;
}

}  // namespace

void check_model_shape(const BaseOptions& options, const std::vector<std::pair<std::string, std::string>>& flags) {
  if (flags.empty()) return;
  const Base base = read_base(options);
  const auto contradict = [&](const std::string& flag, const std::string& got, const std::string& wanted) {
    throw ConfigError({.what = "a model-shape flag contradicts config.json",
                       .where = "--" + flag,
                       .got = got,
                       .wanted = wanted + " (" + (base.path / "config.json").string() + ")",
                       .attempt = "drop the flag: the shape is read from config.json"});
  };
  for (const auto& [flag, value] : flags) {
    if (const auto entry = numbers().find(flag); entry != numbers().end()) {
      const double got = number(flag, value), wanted = entry->second(base.config);
      // eps is kept in f32.
      // Written without ">", because a NaN would pass that comparison.
      if (!(std::abs(got - wanted) <= 1e-6 * std::abs(wanted))) contradict(flag, value, fmt::format("{:g}", wanted));
    } else if (const auto toggle = switches().find(flag); toggle != switches().end()) {
      if (!toggle->second(base.config)) contradict(flag, "given", "not given");
    } else if (const auto text = texts().find(flag); text != texts().end()) {
      if (value != text->second) contradict(flag, value, text->second);
    } else {
      contradict(flag, value, "no such property in the model families that are built");
    }
  }
}

}  // namespace lockstep::recipes
