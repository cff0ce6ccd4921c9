// lockstep reward.
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "cli/reward_flags.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

FlagSet reward_command_flags(commands::RewardOptions& o) {
  FlagSet flags;
  flags.add("Required",
            {reward_flag(o.reward, ""),
             {"--input", "FILE", text(o.input), "rows with a response and a label: JSON Lines, JSON, Parquet"}});
  flags.add("Options", {{"--output", "FILE", text(o.output), "the same rows with their reward, JSON Lines (printed)"},
                        {"--response-key", "KEY", text(o.response_key), "key of the response"},
                        {"--label-key", "KEY", text(o.label_key), "key of the right answer"},
                        {"--prompt-key", "KEY", text(o.prompt_key), "key of the prompt, for rewards that look at it"},
                        {"--metadata-key", "KEY", text(o.metadata_key),
                         "key of an object whose rm_type, if it has one, is the row's reward"},
                        {"--length-key", "KEY", text(o.length_key),
                         "key of the response's tokens: a number, or a list as `generate` writes it (length, "
                         "soft_overlong)"},
                        {"--overlong-length", "N", number(o.reward.parameters.overlong_length, 1, kMany),
                         "of soft_overlong: tokens of the longest response"},
                        max_bad_rows_flag(o.max_bad_rows)});
  flags.add("Reward", reward_flags(o.reward));
  return flags;
}

}  // namespace

commands::RewardOptions parse_reward(const Values& args) {
  commands::RewardOptions options;
  const FlagSet flags = reward_command_flags(options);
  Classified given = parse_flags(args, flags, {"--input"});
  if (options.reward.python_path.empty()) require(given, {"--rm-type"});
  check_reward(options.reward, 0, given);
  for (const rl::RewardChoice& choice : options.reward.choices) {
    const bool by_length =
        choice.rule.type == rl::RewardType::length || choice.rule.type == rl::RewardType::soft_overlong;
    if (choice.kind == rl::RewardKind::rule && by_length && options.length_key.empty())
      throw ConfigError({.what = "--rm-type " + choice.name() + " needs --length-key",
                         .where = "--length-key",
                         .attempt = "--length-key tokens, as `generate` writes them"});
  }
  options.notes = std::move(given.notes);
  return options;
}

std::string reward_help() {
  commands::RewardOptions options;
  return reward_command_flags(options).help(
      "reward",
      "Rewards of given responses, as training and eval give them; prints the mean. Each row of --input is written "
      "with\n"
      "its reward, or null where the label holds no answer to compare with (unknown, left out of the mean).\n"
      "  math    what is in the response's last \\boxed{} equals the label: \\frac12 is 0.5, {1,2} is 2,1. Exact.\n"
      "  number  the last boxed answer, else what stands behind the last ####, else the last number, as a decimal\n"
      "  exact   the whole response is the label\n"
      "  and the rules of docs/rewards.md.\n"
      "The label's answer is in its last \\boxed{}, else behind its last ####, else all of it (docs/rewards.md).",
      "Examples:\n"
      "  lockstep generate --hf-checkpoint DIR --input test.jsonl --output answers.jsonl\n"
      "  lockstep reward --rm-type math --input answers.jsonl --output graded.jsonl\n"
      "  lockstep reward --rm-type number --input old_run.parquet --response-key response --label-key answer");
}

}  // namespace lockstep::cli
