// lockstep merge.
#include "cli/parse_files.h"

#include <array>
#include <cmath>
#include <utility>

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

// Of what runs on the CPU alone.
std::vector<Flag> thread_flags(recipes::BaseOptions& base) {
  std::vector<Flag> flags = machine_flags(base);
  std::erase_if(flags, [](const Flag& flag) { return flag.name != "--threads" && flag.name != "--cpu-isa"; });
  return flags;
}

FlagSet merge_flags(recipes::MergeOptions& o) {
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

}  // namespace

recipes::MergeOptions parse_merge(const Values& args) {
  recipes::MergeOptions options;
  const FlagSet flags = merge_flags(options);
  const Classified given = classify(args, flags, Scripts::none);
  bind(given, flags);
  require(given, {"--hf-checkpoint", "--lora-adapter-path", "--output"});
  return options;
}

std::string merge_help() {
  recipes::MergeOptions options;
  return merge_flags(options).help(
      "merge",
      "A base and an adapter as one Hugging Face model directory: W + scale * B A, computed in f32 and rounded once.\n"
      "The output appears whole or not at all; an interrupt leaves nothing (docs/checkpoints.md).",
      "Example:\n  lockstep merge --hf-checkpoint DIR --lora-adapter-path run/iter_0000100 --output merged");
}

}  // namespace lockstep::cli
