// lockstep generate, chat.
#include <algorithm>

#include "cli/adapter_flags.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

using commands::GenerateOptions, recipes::SamplingOptions;

Binding token_ids(std::vector<int32_t>& target) {
  return numbers(target, 0, kMany);
}

std::vector<Flag> sampling_flags(SamplingOptions& o) {
  constexpr double kMaxPenalty = 1e5;
  return {{"--max-tokens", "N", number(o.max_tokens, 1, 10'000'000), "most new tokens"},
          {"--temperature", "T", number(o.temperature, 0, 100), "0: greedy (generation_config.json, else 1)"},
          {"--top-p", "P", number(o.top_p, kAboveZero, 1),
           "sample from the most likely tokens of mass P (generation_config.json, else 1)"},
          {"--top-k", "K", number(o.top_k, -1, kMany),
           "sample from the K most likely tokens (generation_config.json, else -1: all)"},
          {"--min-p", "P", number(o.min_p, 0, 1), "drop tokens less likely than P times the best (0)"},
          {"--repetition-penalty", "X", number(o.repetition_penalty, kAboveZero, kMaxPenalty),
           "above 1: tokens of prompt and answer become less likely (generation_config.json, else 1)"},
          {"--frequency-penalty", "X", number(o.frequency_penalty, -kMaxPenalty, kMaxPenalty),
           "subtracted from a token's logit for each time it occurs in the answer"},
          {"--presence-penalty", "X", number(o.presence_penalty, -kMaxPenalty, kMaxPenalty),
           "subtracted from a token's logit once if it occurs in the answer"},
          {"--stop", "TEXT...", texts(o.stop), "end the answer before one of these"},
          {"--stop-token-ids", "ID...", token_ids(o.stop_token_ids),
           "end the answer with one of these, in addition to the model's end tokens"},
          {"--ignore-eos", "", toggle(o.ignore_eos), "the model's end tokens do not end an answer"},
          {"--min-tokens", "N", number(o.min_tokens, 0, 10'000'000),
           "no end token or stop string ends an answer before N tokens"},
          {"--seed", "N", number(o.seed, 0, 9e15), "seed of sampling"}};
}

std::vector<Flag> file_flags(GenerateOptions& o) {
  constexpr int64_t kMaxTop = rollout::SamplingParams::kMaxTopLogprobs;
  return {{"--input-key", "KEY", text(o.input_key), "key of the prompt: a string, or a list of messages"},
          {"--output", "FILE", text(o.output), "JSON Lines; after an interruption the same command continues it"},
          {"--overwrite", "", toggle(o.overwrite), "start --output from the beginning"},
          {"--logprobs", "N", number(o.top_logprobs, 0, kMaxTop),
           "add the N most likely tokens at each position: top_logprobs, {id: log-prob}"},
          {"--prompt-logprobs", "N", number(o.prompt_logprobs, 0, kMaxTop),
           "add the prompt's tokens and log-probs, each with the N most likely tokens"},
          {"--max-num-seqs", "N", number(o.max_sequences, 1, 65536), "most sequences decoded at once"},
          max_bad_rows_flag(o.max_bad_rows)};
}

// Those of chat_flags that say how a conversation is written: it always is one.
std::vector<Flag> template_flags(recipes::ChatOptions& chat) {
  std::vector<Flag> flags = chat_flags(chat);
  std::erase_if(flags,
                [](const Flag& flag) { return flag.name == "--apply-chat-template" || flag.name == "--tool-key"; });
  return flags;
}

FlagSet generate_flags(GenerateOptions& o) {
  FlagSet flags;
  flags.add("Required",
            {hf_checkpoint_flag(o.base),
             {"--prompt", "TEXT", text(o.prompt), "one prompt; only the completion is printed"},
             {"--input", "FILE", text(o.input), "or rows (JSON Lines, JSON, Parquet), completed in their order"},
             {"--interactive", "", toggle(o.interactive), "or a conversation in the terminal, as lockstep chat"}});
  flags.add("Options", {adapter_path_flag(o.adapter_path, "generate with this adapter"),
                        {"--n", "N", number(o.n, 1, 65536), "samples of each prompt"},
                        kv_cache_flag(o.kv_bytes)});
  flags.add("Files", file_flags(o));
  flags.add("Sampling", sampling_flags(o.sampling));
  flags.add("Chat", chat_flags(o.chat));
  flags.add("Machine", machine_flags(o.base));
  return flags;
}

FlagSet conversation_flags(GenerateOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base)});
  flags.add("Options", {adapter_path_flag(o.adapter_path, "begin with this adapter"), kv_cache_flag(o.kv_bytes)});
  flags.add("Sampling", sampling_flags(o.sampling));
  flags.add("Chat", template_flags(o.chat));
  flags.add("Machine", machine_flags(o.base));
  return flags;
}

// A flag that this way to generate would not read is an error.
void check_ways(const GenerateOptions& options, const Classified& given) {
  const int ways = (options.prompt ? 1 : 0) + (options.input.empty() ? 0 : 1) + (options.interactive ? 1 : 0);
  if (ways != 1)
    throw ConfigError({.what = "give one of --prompt, --input and --interactive",
                       .where = "--prompt",
                       .got = ways == 0 ? "none" : "more than one",
                       .attempt = "--prompt \"12+34=\""});
  GenerateOptions unused;
  const FlagSet talk = conversation_flags(unused);
  const std::vector<Flag> files = file_flags(unused);
  for (const Occurrence& occurrence : given.used) {
    const std::string& flag = occurrence.flag;
    if (options.interactive && flag != "--interactive" && talk.find(flag) == nullptr)
      throw ConfigError({.what = flag + " has no meaning in a conversation", .where = flag, .attempt = "drop it"});
    if (options.prompt && std::ranges::find(files, flag, &Flag::name) != files.end())
      throw ConfigError(
          {.what = flag + " needs --input", .where = flag, .attempt = "--input FILE with {\"prompt\"} rows"});
  }
  if (options.overwrite && options.output.empty())
    throw ConfigError({.what = "--overwrite needs --output", .where = "--overwrite"});
}

void check_sampling(const SamplingOptions& sampling) {
  if (sampling.min_tokens > sampling.max_tokens)
    throw ConfigError({.what = "--min-tokens is above --max-tokens",
                       .where = "--min-tokens",
                       .got = std::to_string(sampling.min_tokens),
                       .wanted = "at most " + std::to_string(sampling.max_tokens)});
}

}  // namespace

commands::GenerateOptions parse_generate(const Values& args) {
  GenerateOptions options;
  const FlagSet flags = generate_flags(options);
  const Classified given = parse_flags(args, flags, {"--hf-checkpoint"});
  check_ways(options, given);
  check_sampling(options.sampling);
  return options;
}

commands::GenerateOptions parse_chat(const Values& args) {
  GenerateOptions options;
  options.interactive = true;
  parse_flags(args, conversation_flags(options), {"--hf-checkpoint"});
  check_sampling(options.sampling);
  return options;
}

std::string generate_help() {
  GenerateOptions options;
  return generate_flags(options).help(
      "generate", "Generates text with a model, with or without an adapter.",
      "A file: each row of --input is written to --output (or printed) with completion, tokens, logprobs,\n"
      "finish_reason, adapter_version, row and index, in the order of the input. After Ctrl-C or a crash the same\n"
      "command continues, and the file gets the same bytes; FILE.run.json beside it records how it was made.\n\n"
      "Examples:\n"
      "  lockstep generate --hf-checkpoint DIR --prompt \"12+34=\" --temperature 0\n"
      "  lockstep generate --hf-checkpoint DIR --lora-adapter-path run/iter_0000100/lora_adapter \\\n"
      "    --input prompts.jsonl --output answers.jsonl --n 4 --max-tokens 512\n"
      "  lockstep generate --hf-checkpoint DIR --interactive");
}

std::string chat_help() {
  GenerateOptions options;
  return conversation_flags(options).help(
      "chat", "A conversation with a model in the terminal; the same as generate --interactive.",
      "What you type is your turn; Ctrl-C stops an answer, Ctrl-D ends. /help lists the commands: /reset, /undo,\n"
      "/system TEXT, /set temperature 0.7, /adapter DIR, /save FILE, /stats. From a pipe each line is a turn.\n\n"
      "Examples:\n"
      "  lockstep chat --hf-checkpoint DIR --lora-adapter-path run/iter_0000100/lora_adapter --temperature 0.7\n"
      "  printf 'What is 12+34?\\nAnd twice that?\\n' | lockstep chat --hf-checkpoint DIR");
}

}  // namespace lockstep::cli
