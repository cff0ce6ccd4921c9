// lockstep merge, diff, verify, convert.
#include "cli/parse_files.h"

#include <array>
#include <cmath>
#include <utility>

#include "cli/adapter_flags.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

// "5GB", "512MiB", or a plain number of bytes.
Binding file_size(int64_t& target, std::string shown) {
  constexpr std::array<std::pair<std::string_view, double>, 7> kUnits = {
      {{"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1.0}}};
  return {.shown = std::move(shown), .set = [&target, kUnits](const std::string& flag, const Values& values) {
            std::string_view number = values[0];
            double unit = 1;
            for (const auto& [name, bytes] : kUnits)
              if (number.ends_with(name)) {
                number.remove_suffix(name.size());
                unit = bytes;
                break;
              }
            const std::optional<double> count = read_real(number);
            if (!count || *count * unit < 1 || *count * unit > 1e18)
              throw ConfigError({.what = "this is no size",
                                 .where = flag,
                                 .got = values[0],
                                 .wanted = "a number above 0 with B, KB, MB, GB, KiB, MiB or GiB, such as 5GB"});
            target = static_cast<int64_t>(*count * unit);
          }};
}

Binding weight_type(std::optional<DType>& target) {
  return choice("auto|bfloat16|float16|float32|bf16|f16|f32", "auto", [&target](const std::string& name) {
    target.reset();
    if (name == "bfloat16" || name == "bf16") target = DType::bf16;
    if (name == "float16" || name == "f16") target = DType::f16;
    if (name == "float32" || name == "f32") target = DType::f32;
  });
}

// Flags of the machine for commands that run on the CPU only.
std::vector<Flag> thread_flags(recipes::BaseOptions& base) {
  std::vector<Flag> flags = machine_flags(base);
  std::erase_if(flags, [](const Flag& flag) { return flag.name != "--threads" && flag.name != "--cpu-isa"; });
  return flags;
}

FlagSet merge_flags(commands::MergeOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base),
                         adapter_path_flag(o.adapter_path, "PEFT directory, checkpoint or --save directory"),
                         {"--output", "DIR", text(o.output), "the merged model; new or empty"}});
  flags.add("Options", {{"--dtype", "TYPE", weight_type(o.dtype),
                         "auto: each tensor's own | bfloat16 | float16 | float32: of every weight"},
                        {"--max-shard-size", "SIZE", file_size(o.max_shard_bytes, "5GB"), "largest file of weights"},
                        {"--overwrite", "", toggle(o.overwrite), "replace the model that is in --output"}});
  flags.add("Machine", thread_flags(o.base));
  return flags;
}

FlagSet diff_flags(commands::DiffOptions& o) {
  FlagSet flags;
  flags.add("Options",
            {{"--json", "", toggle(o.json), "one JSON object instead of a table"},
             {"--rtol", "X", number(o.tolerance, 0, 1), "what still counts as equal, as a share of the larger norm"},
             {"--threads", "N", number(o.stream.threads, 0, max_threads()), "threads (0: all cores)"}});
  return flags;
}

FlagSet verify_flags(commands::VerifyOptions& o) {
  o.base.home = home_directory();
  FlagSet flags;
  flags.add("Options", {{"--hf-checkpoint", "DIR", text(o.base.hf_checkpoint), "the base that PATH must belong to"}});
  flags.add("Machine", thread_flags(o.base));
  return flags;
}

FlagSet convert_flags(commands::ConvertOptions& o) {
  FlagSet flags;
  flags.add("Required", {{"--to", "NAMES",
                          choice("megatron|hf", "",
                                 [&o](const std::string& name) {
                                   o.to = name == "hf" ? commands::AdapterNames::hf : commands::AdapterNames::megatron;
                                 }),
                          "megatron: linear_qkv, linear_proj, linear_fc1, linear_fc2 | hf: PEFT's names"},
                         hf_checkpoint_flag(o.base),
                         adapter_path_flag(o.adapter_path, "the adapter, under the names of the other side"),
                         {"--output", "DIR", text(o.output), "the converted adapter; new or empty"}});
  flags.add("Options",
            {{"--lora-type", "TYPE",
              choice("auto|lora|canonical_lora", "auto",
                     [&o](const std::string& name) {
                       o.lora_type.reset();
                       if (name != "auto") o.lora_type = lora::parse_lora_type(name);
                     }),
              "to megatron: lora (q, k, v share one A) | canonical_lora (a pair each) | auto: lora if it can be"},
             {"--overwrite", "", toggle(o.overwrite), "replace the adapter that is in --output"}});
  return flags;
}

}  // namespace

commands::MergeOptions parse_merge(const Values& args) {
  commands::MergeOptions options;
  parse_flags(args, merge_flags(options), {"--hf-checkpoint", "--lora-adapter-path", "--output"});
  return options;
}

commands::DiffOptions parse_diff(const Values& args) {
  commands::DiffOptions options;
  const FlagSet flags = diff_flags(options);
  const Classified given = parse_flags(args, flags, {}, 2);
  if (given.positionals.size() != 2)
    throw ConfigError({.what = "diff needs two paths", .attempt = "lockstep diff run/iter_0000100 run/iter_0000200"});
  options.a = given.positionals[0], options.b = given.positionals[1];
  return options;
}

commands::VerifyOptions parse_verify(const Values& args) {
  commands::VerifyOptions options;
  const FlagSet flags = verify_flags(options);
  const Classified given = parse_flags(args, flags, {}, 1);
  if (given.positionals.empty())
    throw ConfigError({.what = "verify needs a path", .attempt = "lockstep verify run/iter_0000100"});
  options.path = given.positionals[0];
  return options;
}

commands::ConvertOptions parse_convert(const Values& args) {
  commands::ConvertOptions options;
  const FlagSet flags = convert_flags(options);
  const Classified given = parse_flags(args, flags, {"--to", "--hf-checkpoint", "--lora-adapter-path", "--output"});
  if (options.to == commands::AdapterNames::hf && options.lora_type)
    throw ConfigError({.what = "--lora-type is about Megatron's names",
                       .where = "--lora-type",
                       .got = "--to hf",
                       .attempt = "leave it out"});
  return options;
}

std::string merge_help() {
  commands::MergeOptions options;
  return merge_flags(options).help(
      "merge",
      "A base and an adapter as one Hugging Face model directory: W + scale * B A, computed in f32 and rounded once.\n"
      "The output appears whole or not at all; an interrupt leaves nothing (docs/checkpoints.md).",
      "Example:\n  lockstep merge --hf-checkpoint DIR --lora-adapter-path run/iter_0000100 --output merged");
}

std::string diff_help() {
  commands::DiffOptions options;
  return diff_flags(options).help(
      "diff A B",
      "How far two adapters, or two Hugging Face models, are apart: norms of each module's update scale * B A (of a\n"
      "model: of each tensor), of the difference, their cosine, rank and alpha, and settings that differ.\n"
      "Exit code 0: nothing differs. 1: something does. 2 and above: an error, as everywhere.",
      "Examples:\n  lockstep diff run/iter_0000100 run/iter_0000200\n  lockstep diff merged base --rtol 1e-3 --json");
}

std::string verify_help() {
  commands::VerifyOptions options;
  return verify_flags(options).help(
      "verify PATH",
      "Whether a checkpoint, a --save directory, an adapter or a Hugging Face model is whole: checksums, names, "
      "shapes,\n"
      "types, values that are not finite, the base it belongs to. Lists what it checked and every problem.\n"
      "Exit code 0: no problem. 4: problems.",
      "Examples:\n  lockstep verify run/iter_0000100 --hf-checkpoint DIR\n  lockstep verify merged");
}

std::string convert_help() {
  commands::ConvertOptions options;
  return convert_flags(options).help(
      "convert",
      "An adapter under Megatron's names or Hugging Face's (docs/checkpoints.md). Every value keeps its bits. Of the\n"
      "base only config.json is read.",
      "Example:\n  lockstep convert --to megatron --hf-checkpoint DIR --lora-adapter-path run/iter_0000100 --output "
      "out");
}

}  // namespace lockstep::cli
