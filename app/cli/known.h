// Flags of vime, miles, slime, Megatron, vLLM and SGLang launch scripts that no command here reads, and what becomes of
// each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cli/flags.h"

namespace lockstep::cli {

// What a flag without an option of ours is about.
//   none     nothing that changes a result here
//   layout   how many devices, processes or nodes: one is what runs, more are not available yet
//   report   who else is told about the run: not available yet
//   told     either of these, where it is available, or nothing is missing without it
// Layouts and reports change no result, so --without may leave them out.
enum class Effect { none, layout, report, told };

// Accepted; a printed line says what it maps to. A name that ends in '*' stands for all flags that start so; their
// values are whatever follows.
struct Compatible {
  std::string_view name;
  Arity arity;
  std::string_view line;
  // Values, separated by '|', numbers compared as numbers; '#' is any number, empty: any value.
  std::string_view accepted = {};
  std::string_view later = {};  // values known but not available yet ("*": all others); any other is a ConfigError
  Effect effect = Effect::none;
};
std::span<const Compatible> compatible_flags();
std::span<const Compatible> sft_compatible_flags();    // looked up first by `sft`
std::span<const Compatible> serve_compatible_flags();  // those of `serve`, which has no others
// The row of --vllm-X, --no-vllm-X or --sglang-X where X is an argument of that engine that claims nothing; else
// nullptr.
const Compatible* engine_flag(std::string_view flag);
std::span<const Compatible> engine_rows();     // those of them with values to look at
std::vector<std::string> engine_flag_names();  // all of them, without the --no- forms

// What a script tells another trainer or engine to do that decides results, and that is compared with what this program
// will do: applied, found to agree, or refused (cli/claims.h).
enum class Claim {
  context,   // tokens of a prompt and its answer together
  seed,      // of sampling
  sampling,  // sampling fields, as JSON
  logprobs,  // which log-probs are reported
  adapters,  // adapters that are loaded
  targets,   // modules that may have adapters
  rank,      // the largest rank
  chat_template,
  // Judged when config.json has been read (recipes/launch_claims.h).
  model,  // a model or tokenizer directory
  weight_type,
  cache_type,
  adapter_type,
  device,
};
struct ClaimFlag {
  std::string_view name;
  Arity arity;
  Claim claim;
  std::string_view later = {};  // values known but not available yet
  std::string_view value = {};  // what a switch claims
};
std::span<const ClaimFlag> claim_flags();
std::span<const ClaimFlag> serve_claim_flags();

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
