#include "cli/reward_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep::cli {

namespace {

struct UngradedRule {
  std::string_view name, why, attempt;
};

constexpr std::string_view kOwnReward = "a reward of your own: docs/rewards.md";

constexpr UngradedRule kUngraded[] = {
    {"ifbench", "its instructions are checked by a Python package of their own", kOwnReward},
    {"gemma_math", "it is the answer format of one model family, and its rule is not published with verdicts",
     kOwnReward},
    {"boxed_math", "math reads the last \\boxed{} itself, and finds none inside of one", "--rm-type math"},
    {"boxed_deepscaler", "deepscaler reads the last \\boxed{} itself, and finds none inside of one",
     "--rm-type deepscaler"}};

void set_rule(rl::RewardRule& rule, const std::string& flag, const std::string& name) {
  for (const UngradedRule& refused : kUngraded)
    if (refused.name == name)
      throw ConfigError({.what = fmt::format("{} {} is not graded here: {}", flag, name, refused.why),
                         .where = flag,
                         .got = name,
                         .attempt = std::string(refused.attempt)});
  const std::optional<rl::RewardRule> named = rl::rule_of(name);
  if (!named)
    throw ConfigError({.what = "bad value of " + flag,
                       .where = flag,
                       .got = name,
                       .wanted = fmt::format("{}", fmt::join(split_names(rl::rule_names()), ", "))});
  rule.type = named->type;
  rule.boxed = named->boxed;
}

// A flag that only some rules read.
void require_rule(const Classified& given, const char* flag, const rl::RewardRule& rule,
                  std::initializer_list<rl::RewardType> types, const char* names) {
  if (given.given(flag) == nullptr) return;
  for (const rl::RewardType type : types)
    if (rule.type == type) return;
  throw ConfigError({.what = fmt::format("{} needs --rm-type {}", flag, names),
                     .where = flag,
                     .got = "--rm-type " + rl::rule_name(rule)});
}

}  // namespace

Flag reward_flag(rl::RewardRule& rule, std::string_view shown) {
  return {
      "--rm-type", "NAME",
      Binding{.shown = std::string(shown),
              .set = [&rule](const std::string& flag, const Values& values) { set_rule(rule, flag, values[0]); },
              .later = "remote_rm"},
      "reward: math (LaTeX in the last \\boxed{}) | number (last boxed answer or number) | exact (the whole text) | "
      "deepscaler, dapo, gsm8k, f1, gpqa, regex, json_schema, length, format, repetition, soft_overlong, random, "
      "deterministic_random; boxed_NAME"};
}

std::vector<Flag> rule_flags(rl::RewardRule& rule) {
  return {{"--math-tolerance", "X", number(rule.math_tolerance, 0, kBelowOne),
           "of math and deepscaler: difference allowed between two numbers, relative to the label's (0: 0.333 is not "
           "1/3)"},
          {"--repetition-ngram", "N", number(rule.ngram, 1, 1000), "of repetition: words in a row"},
          {"--repetition-max-penalty", "X", number(rule.repetition_penalty, -1000, 0),
           "of repetition: reward if all of them are the same"},
          {"--overlong-cache", "N", number(rule.overlong_cache, 1, kMany),
           "of soft_overlong: the last tokens of the longest response, which cost"}};
}

Flag reward_failure_flag(rl::RewardFailure& policy) {
  using rl::RewardFailure;
  const auto set = [&policy](const std::string& name) {
    policy = name == "stop" ? RewardFailure::stop : RewardFailure::drop_sample;
  };
  return {"--on-reward-failure", "WHAT", choice("drop-sample|stop", "drop-sample", set),
          "of a sample whose reward is unknown: drop-sample (it weighs 0 and leaves its group's baseline) | stop"};
}

void check_reward(rl::RewardRule& rule, int64_t max_length, Classified& given) {
  using rl::RewardType;
  require_rule(given, "--math-tolerance", rule, {RewardType::math, RewardType::deepscaler}, "math or deepscaler");
  require_rule(given, "--repetition-ngram", rule, {RewardType::repetition}, "repetition");
  require_rule(given, "--repetition-max-penalty", rule, {RewardType::repetition}, "repetition");
  require_rule(given, "--overlong-cache", rule, {RewardType::soft_overlong}, "soft_overlong");
  if (rule.type == RewardType::soft_overlong) {
    if (rule.overlong_length == 0) rule.overlong_length = max_length;
    if (rule.overlong_cache == 0 || rule.overlong_cache > rule.overlong_length)
      throw ConfigError({.what = "--rm-type soft_overlong needs --overlong-cache",
                         .where = "--overlong-cache",
                         .got = rule.overlong_cache == 0 ? "" : shown_number(rule.overlong_cache),
                         .wanted = fmt::format("1 to {}, the tokens of the longest response", rule.overlong_length)});
  }
  if (const std::string difference = rl::rule_difference(rule); !difference.empty())
    given.notes.push_back(fmt::format("--rm-type {}: {}", rl::rule_name(rule), difference));
}

}  // namespace lockstep::cli
