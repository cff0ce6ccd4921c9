// lockstep score, eval, bench, inspect.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/adapter_flags.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "cli/reward_flags.h"
#include "commands/commands.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

FlagSet score_flags(commands::ScoreOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base),
                         {"--input", "FILE", text(o.input), "rows: {\"tokens\": [...]} or {\"text\": \"...\"}"},
                         {"--output", "FILE", text(o.output), "the same rows with tokens and logprobs"}});
  flags.add("Options", {adapter_path_flag(o.adapter_path, "score with this adapter"),
                        {"--max-tokens-per-gpu", "N", number(o.max_tokens, 1, 100'000'000),
                         "largest batch in tokens; affects memory and speed only"}});
  flags.add("Machine", machine_flags(o.base));
  return flags;
}

FlagSet inspect_flags(commands::InspectOptions& o) {
  FlagSet flags;
  flags.add("Options", {{"--rows", "N", number(o.num_rows, 0, kMany), "rows of a data set that are printed"}});
  return flags;
}

FlagSet eval_flags(commands::EvalOptions& o) {
  FlagSet flags;
  flags.add("Required",
            {hf_checkpoint_flag(o.base),
             {"--prompt-data", "FILE", text(o.prompt_data), "one question a row: JSON Lines, JSON or Parquet"}});
  flags.add("Options",
            {adapter_path_flag(o.adapter_path, "evaluate with this adapter"),
             {"--input-key", "KEY", text(o.input_key), "key of the prompt"},
             {"--label-key", "KEY", text(o.label_key), "key of the right answer"},
             reward_flag(o.reward, "number"),
             {"--temperature", "T...", numbers(o.temperatures, 0, 100),
              "temperatures to measure at, each on its own; 0: greedy"},
             {"--n", "N", number(o.n, 1, 65536), "samples of each prompt at temperatures above 0"},
             {"--max-tokens", "N", number(o.max_tokens, 1, 10'000'000), "most new tokens"},
             {"--seed", "N", number(o.seed, 0, 9e15), "seed of sampling"},
             {"--log-passrate", "", toggle(o.log_passrate), "also pass@k of the --n samples"},
             {"--num-examples", "N", number(o.num_examples, 0, 1'000'000), "answers printed per temperature"}});
  flags.add("Reward", reward_flags(o.reward));
  flags.add("Chat", chat_flags(o.chat));
  flags.add("Machine", machine_flags(o.base));
  return flags;
}

// "1,64,256" or "1 64 256".
Values cut_lists(const Values& values) {
  Values items;
  for (const std::string& value : values)
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      items.push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
  return items;
}

Binding counts(std::vector<int64_t>& target, double low, double high) {
  return {.arity = Arity::many, .set = [&target, low, high](const std::string& flag, const Values& values) {
            numbers(target, low, high).set(flag, cut_lists(values));
          }};
}

Binding bench_parts(std::vector<std::string>& target) {
  return {.arity = Arity::many, .set = [&target](const std::string& flag, const Values& values) {
            target = cut_lists(values);
            const std::vector<std::string> parts = commands::bench_parts();
            for (const std::string& name : target)
              if (std::ranges::find(parts, name) == parts.end())
                throw ConfigError({.what = "no such part of the benchmark",
                                   .where = flag,
                                   .got = name,
                                   .wanted = fmt::format("{}", fmt::join(parts, ", "))});
          }};
}

FlagSet bench_flags(commands::BenchOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base)});
  flags.add("Options",
            {{"--json", "FILE", text(o.json), "write the record here"},
             {"--batch-size", "N", number(o.batch_size, 1, 65536), "sequences of a training step (CPU 2; GPU 8)"},
             {"--seq-length", "N", number(o.seq_length, 2, 10'000'000), "tokens of each (CPU 256; GPU 2048)"},
             {"--lora-rank", "R", number(o.lora_rank, 1, 8192), "rank of the adapter, on all linear layers"},
             {"--decode-batch", "N[,N...]", counts(o.decode_batches, 1, 65536),
              "sequences decoded at once (CPU 1,8,32; GPU 1,64,256)"},
             {"--n-samples-per-prompt", "N", number(o.samples_per_prompt, 1, 65536),
              "how many of those sequences share a prompt; must divide every --decode-batch (1)"},
             {"--prompt-length", "N", number(o.prompt_tokens, 1, 10'000'000), "prompt tokens of each (128)"},
             {"--new-tokens", "N", number(o.new_tokens, 1, 10'000'000), "new tokens of each (CPU 128; GPU 256)"},
             {"--only", "PART[,PART...]", bench_parts(o.parts),
              fmt::format("of {} (all)", fmt::join(commands::bench_parts(), ", "))}});
  flags.add("Options", activation_flags(o.training));
  flags.add("Machine", machine_flags(o.base));
  return flags;
}

}  // namespace

commands::ScoreOptions parse_score(const Values& args) {
  commands::ScoreOptions options;
  parse_flags(args, score_flags(options), {"--hf-checkpoint", "--input", "--output"});
  return options;
}

commands::EvalOptions parse_eval(const Values& args) {
  commands::EvalOptions options;
  Classified given = parse_flags(args, eval_flags(options), {"--hf-checkpoint", "--prompt-data"});
  check_reward(options.reward, options.max_tokens, given);
  options.notes = std::move(given.notes);
  return options;
}

commands::BenchOptions parse_bench(const Values& args) {
  commands::BenchOptions options;
  parse_flags(args, bench_flags(options), {"--hf-checkpoint"});
  return options;
}

commands::InspectOptions parse_inspect(const Values& args) {
  commands::InspectOptions options;
  const FlagSet flags = inspect_flags(options);
  const Classified given = parse_flags(args, flags, {}, 1);
  if (given.positionals.empty())
    throw ConfigError({.what = "inspect needs a path", .attempt = "lockstep inspect run/iter_0000003/lora_adapter"});
  options.path = given.positionals[0];
  return options;
}

std::string score_help() {
  commands::ScoreOptions options;
  return score_flags(options).help(
      "score", "Log-probabilities of given texts; prints the perplexity.",
      "Example:\n  lockstep score --hf-checkpoint DIR --input rows.jsonl --output scored.jsonl");
}

std::string eval_help() {
  commands::EvalOptions options;
  return eval_flags(options).help(
      "eval", "Accuracy on questions with known answers.",
      "Example:\n  lockstep eval --hf-checkpoint models/arith --prompt-data models/arith/test.jsonl --rm-type number");
}

std::string bench_help() {
  commands::BenchOptions options;
  return bench_flags(options).help("bench", "Speed and memory on this machine, beside its measured limits.",
                                   "Example:\n  lockstep bench --hf-checkpoint DIR --json record.json");
}

std::string inspect_help() {
  commands::InspectOptions options;
  return inspect_flags(options).help(
      "inspect PATH",
      "Describes a directory: an adapter (rank, alpha, modules, norms, version, base), a save directory or a model;\n"
      "or a data set (JSON Lines, JSON, Parquet; gzip, xz, zstd): its columns and first rows.",
      "Examples:\n  lockstep inspect run/iter_0000100/lora_adapter\n  lockstep inspect train.parquet@[100:200] --rows "
      "5");
}

}  // namespace lockstep::cli
