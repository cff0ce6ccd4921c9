// lockstep reward.
#include "cli/parse.h"
#include "cli/parse_shared.h"

namespace lockstep::cli {

namespace {

FlagSet reward_command_flags(commands::RewardOptions& o) {
  FlagSet flags;
  flags.add("Required",
            {reward_flag(o.reward.type, ""),
             {"--input", "FILE", text(o.input), "rows with a response and a label: JSON Lines, JSON, Parquet"}});
  flags.add("Options", {{"--output", "FILE", text(o.output), "the same rows with their reward, JSON Lines (printed)"},
                        {"--response-key", "KEY", text(o.response_key), "key of the response"},
                        {"--label-key", "KEY", text(o.label_key), "key of the right answer"},
                        math_tolerance_flag(o.reward.math_tolerance),
                        max_bad_rows_flag(o.max_bad_rows)});
  return flags;
}

}  // namespace

commands::RewardOptions parse_reward(const Values& args) {
  commands::RewardOptions options;
  const FlagSet flags = reward_command_flags(options);
  const Classified given = parse_flags(args, flags, {"--rm-type", "--input"});
  check_reward(options.reward, given);
  return options;
}

std::string reward_help() {
  commands::RewardOptions options;
  return reward_command_flags(options).help(
      "reward",
      "Rewards of given responses, as training and eval give them; prints the mean. Each row of --input is written "
      "with\n"
      "its reward: 1 or 0, or null where the label holds no answer to compare with (unknown, left out of the mean).\n"
      "  math    what is in the response's last \\boxed{} equals the label: \\frac12 is 0.5, {1,2} is 2,1. Exact.\n"
      "  number  the last boxed answer, else what stands behind the last ####, else the last number, as a decimal\n"
      "  exact   the whole response is the label\n"
      "The label's answer is in its last \\boxed{}, else behind its last ####, else all of it (docs/rewards.md).",
      "Examples:\n"
      "  lockstep generate --hf-checkpoint DIR --input test.jsonl --output answers.jsonl\n"
      "  lockstep reward --rm-type math --input answers.jsonl --output graded.jsonl\n"
      "  lockstep reward --rm-type number --input old_run.parquet --response-key response --label-key answer");
}

}  // namespace lockstep::cli
