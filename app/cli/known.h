// Flags of vime, miles, slime, Megatron, vLLM and SGLang launch scripts that no command here reads, and what becomes of
// each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cli/flags.h"

namespace lockstep::cli {

// Accepted, has no effect to have; a printed line says what it maps to. A name that ends in '*' stands for all flags
// that start so; their values are whatever follows.
struct Compatible {
  std::string_view name;
  Arity arity;
  std::string_view line;
  std::string_view accepted = {};  // values, separated by '|', numbers compared as numbers; empty: any
  std::string_view later =
      {};  // values known but not available yet ("*": all others); any other value is a ConfigError
};
std::span<const Compatible> compatible_flags();
std::span<const Compatible> sft_compatible_flags();    // looked up first by `sft`
std::span<const Compatible> serve_compatible_flags();  // those of `serve`, which has no others
// The row of --vllm-X, --no-vllm-X, --sglang-X or --no-sglang-X where X is an argument of that engine that changes no
// result here; else nullptr.
const Compatible* engine_flag(std::string_view flag);
std::vector<std::string> engine_flag_names();  // without the --no- forms

// Known to change results, not available yet. Names, or prefixes ending in '*'.
std::span<const std::string_view> later_flags();
std::span<const std::string_view> sft_later_flags();

// Repeat what config.json says; compared with it by recipes::check_model_shape.
struct ShapeFlag {
  std::string_view name;
  Arity arity;
};
std::span<const ShapeFlag> shape_flags();

// Does `pattern` (a name, or a prefix ending in '*') mean `name`?
inline bool means(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

}  // namespace lockstep::cli
