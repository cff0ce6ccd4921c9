#include "cli/reward_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/secret_file.h"
#include "core/error.h"

namespace lockstep::cli {

using rl::RewardChoice, rl::RewardKind, rl::RewardConfig, rl::RewardType;

namespace {

struct UngradedRule {
  std::string_view name, why, attempt;
};

constexpr std::string_view kOwnReward = "a reward of your own (--custom-rm-path, --rm-type command)";

constexpr UngradedRule kUngraded[] = {
    {"ifbench", "its instructions are checked by a Python package of their own", kOwnReward},
    {"gemma_math", "it is the answer format of one model family, and its rule is not published with verdicts",
     kOwnReward},
    {"boxed_math", "math reads the last \\boxed{} itself, and finds none inside of one", "--rm-type math"},
    {"boxed_deepscaler", "deepscaler reads the last \\boxed{} itself, and finds none inside of one",
     "--rm-type deepscaler"}};

constexpr std::pair<std::string_view, RewardKind> kServices[] = {{"command", RewardKind::command},
                                                                 {"remote_rm", RewardKind::remote},
                                                                 {"judge", RewardKind::judge},
                                                                 {"code", RewardKind::code},
                                                                 {"sandbox_fusion", RewardKind::sandbox_fusion}};

RewardChoice choice_of(const std::string& flag, const std::string& name) {
  for (const UngradedRule& ungraded : kUngraded)
    if (ungraded.name == name)
      throw ConfigError({.what = fmt::format("{} {} is not graded here: {}", flag, name, ungraded.why),
                         .where = flag,
                         .got = name,
                         .attempt = std::string(ungraded.attempt)});
  for (const auto& [service, kind] : kServices)
    if (service == name) return {.kind = kind};
  const std::optional<rl::RewardRule> rule = rl::rule_of(name);
  if (!rule)
    throw ConfigError(
        {.what = "bad value of " + flag,
         .where = flag,
         .got = name,
         .wanted = fmt::format("{}, command, remote_rm, judge, code, sandbox_fusion; or several with weights: "
                               "math:0.9,format:0.1",
                               fmt::join(split_names(rl::rule_names()), ", "))});
  return {.rule = *rule};
}

// A flag that only some rewards read.
void require_reader(const RewardConfig& spec, const Classified& given, const char* flag, bool read,
                    const char* readers) {
  if (given.given(flag) == nullptr || read) return;
  throw ConfigError(
      {.what = fmt::format("{} needs {}", flag, readers), .where = flag, .got = "--rm-type " + spec.name()});
}

bool has_rule(const RewardConfig& spec, std::initializer_list<RewardType> types) {
  return std::ranges::any_of(spec.choices, [&](const RewardChoice& choice) {
    return choice.kind == RewardKind::rule && std::ranges::find(types, choice.rule.type) != types.end();
  });
}

void check_readers(const RewardConfig& spec, const Classified& given) {
  const bool programs = spec.has(RewardKind::command) || spec.has(RewardKind::python);
  const bool services =
      spec.has(RewardKind::remote) || spec.has(RewardKind::judge) || spec.has(RewardKind::sandbox_fusion);
  const bool math = has_rule(spec, {RewardType::math, RewardType::deepscaler});
  const bool repetition = has_rule(spec, {RewardType::repetition});
  require_reader(spec, given, "--math-tolerance", math, "--rm-type math or deepscaler");
  require_reader(spec, given, "--repetition-ngram", repetition, "--rm-type repetition");
  require_reader(spec, given, "--repetition-max-penalty", repetition, "--rm-type repetition");
  require_reader(spec, given, "--overlong-cache", has_rule(spec, {RewardType::soft_overlong}),
                 "--rm-type soft_overlong");
  require_reader(spec, given, "--reward-command", spec.has(RewardKind::command), "--rm-type command");
  require_reader(spec, given, "--reward-workers", programs || spec.has(RewardKind::code),
                 "--rm-type command or code, or --custom-rm-path");
  require_reader(spec, given, "--group-rm", programs, "--rm-type command or --custom-rm-path");
  const bool dapo = has_rule(spec, {RewardType::dapo});  // slime's is an object, of which scripts ask for this
  if (dapo && !programs && !spec.reward_key.empty() && spec.reward_key != "score")
    throw ConfigError(
        {.what = "dapo has no such part", .where = "--reward-key", .got = spec.reward_key, .wanted = "score"});
  require_reader(spec, given, "--reward-key", programs || dapo || spec.has(RewardKind::remote),
                 "--rm-type remote_rm or command, or --custom-rm-path");
  require_reader(spec, given, "--reward-timeout", programs || services,
                 "--rm-type command, remote_rm, judge or sandbox_fusion, or --custom-rm-path");
  require_reader(spec, given, "--rm-url", services, "--rm-type remote_rm, judge or sandbox_fusion");
  require_reader(spec, given, "--rm-api-key", services, "--rm-type remote_rm, judge or sandbox_fusion");
  require_reader(spec, given, "--rm-api-key-file", services, "--rm-type remote_rm, judge or sandbox_fusion");
  for (const char* flag : {"--judge-model", "--judge-prompt", "--judge-max-tokens"})
    require_reader(spec, given, flag, spec.has(RewardKind::judge), "--rm-type judge");
  for (const char* flag : {"--code-timeout", "--code-memory-mb"})
    require_reader(spec, given, flag, spec.has(RewardKind::code) || spec.has(RewardKind::sandbox_fusion),
                   "--rm-type code or sandbox_fusion");
}

void check_missing(const RewardConfig& spec) {
  const auto need = [](bool missing, const char* flag, const RewardChoice& choice, const char* attempt) {
    if (missing)
      throw ConfigError(
          {.what = fmt::format("--rm-type {} needs {}", choice.name(), flag), .where = flag, .attempt = attempt});
  };
  int services = 0;
  for (const RewardChoice& choice : spec.choices) {
    const bool service = choice.kind == RewardKind::remote || choice.kind == RewardKind::judge ||
                         choice.kind == RewardKind::sandbox_fusion;
    need(choice.kind == RewardKind::command && spec.command.empty(), "--reward-command", choice,
         "--reward-command 'python3 grade.py'");
    need(choice.kind == RewardKind::judge && spec.judge_model.empty(), "--judge-model", choice,
         "--judge-model NAME, as the server calls it");
    need(service && spec.url.empty(), "--rm-url", choice, "--rm-url http://127.0.0.1:8000");
    services += service ? 1 : 0;
  }
  if (services > 1) throw ConfigError({.what = "--rm-url is of one service", .where = "--rm-type", .got = spec.name()});
}

void check_overlong(rl::RewardRule& rule, int64_t max_length) {
  if (rule.type != RewardType::soft_overlong) return;
  if (rule.overlong_length == 0) rule.overlong_length = max_length;
  if (rule.overlong_cache == 0 || rule.overlong_cache > rule.overlong_length)
    throw ConfigError({.what = "--rm-type soft_overlong needs --overlong-cache",
                       .where = "--overlong-cache",
                       .got = rule.overlong_cache == 0 ? "" : shown_number(rule.overlong_cache),
                       .wanted = fmt::format("1 to {}, the tokens of the longest response", rule.overlong_length)});
}

// Seconds as milliseconds.
Binding seconds(std::chrono::milliseconds& target) {
  return {.shown = shown_number(target.count() / 1000),
          .set = [&target](const std::string& flag, const Values& values) {
            constexpr double kMin = 0.01, kMax = 86400;
            target = std::chrono::milliseconds(static_cast<int64_t>(1000 * parse_real(flag, values[0], kMin, kMax)));
          }};
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

std::vector<Flag> service_flags(RewardConfig& spec) {
  return {
      {"--reward-command", "CMD", text(spec.command),
       "of command: a program that answers each JSON line with one (docs/rewards.md)"},
      {"--custom-rm-path", "PATH", text(spec.python_path),
       "module.function in the user's python3: slime's fn(args, sample), verl's or TRL's reward function"},
      {"--group-rm", "", toggle(spec.groups), "command and --custom-rm-path get all samples of a prompt at once"},
      {"--reward-key", "KEY", text(spec.reward_key), "which member of a reward that is an object (score)"},
      {"--reward-workers", "N", number(spec.workers, 1, 1024), "programs, or responses of code, that run at once"},
      {"--reward-timeout", "S", seconds(spec.timeout), "seconds until a reward is unknown, attempts included"},
      {"--rm-url", "URL", text(spec.url), "of remote_rm, judge, sandbox_fusion: http://HOST:PORT/PATH"},
      {"--rm-api-key", "KEY", text(spec.api_key), "that this service asks for"},
      {"--rm-api-key-file", "FILE", secret_file(spec.api_key), "file with that key"},
      {"--judge-model", "NAME", text(spec.judge_model), "of judge: model of an OpenAI chat server"},
      {"--judge-prompt", "FILE", text(spec.judge_prompt_file),
       "of judge: a text with {prompt}, {response} and {label} that asks for <score>NUMBER</score>"},
      {"--judge-max-tokens", "N", number(spec.judge_max_tokens, 1, 1'000'000), "of judge: tokens of its answer"},
      {"--code-timeout", "S", number(spec.code_timeout_s, 1, 3600), "of code and sandbox_fusion: seconds of a case"},
      {"--code-memory-mb", "N", number(spec.code_memory_mb, 16, 1 << 20),
       "of code and sandbox_fusion: memory of a case"}};
}

}  // namespace

std::vector<RewardChoice> reward_choices(const std::string& flag, const std::string& text) {
  std::vector<RewardChoice> choices;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t colon = std::min(item.find(':'), item.size());
    RewardChoice choice = choice_of(flag, item.substr(0, colon));
    if (colon < item.size()) choice.weight = parse_real(flag, item.substr(colon + 1), -1e6, 1e6);
    for (const RewardChoice& other : choices)
      if (other.name() == choice.name())
        throw ConfigError({.what = "a reward is named twice", .where = flag, .got = text});
    choices.push_back(choice);
    begin = end + 1;
  }
  return choices;
}

namespace {

// All rules but those that --help explains, and boxed_NAME.
std::string other_rules() {
  std::vector<std::string_view> names;
  static const std::string kAll = rl::rule_names();
  for (const std::string_view name : split_names(kAll))
    if (name != "math" && name != "number" && name != "exact" && !name.starts_with("boxed_")) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Flag reward_flag(RewardConfig& spec, std::string_view shown) {
  const auto set = [&spec](const std::string& flag, const Values& values) {
    spec.choices = reward_choices(flag, values[0]);
  };
  return {"--rm-type", "NAME", Binding{.shown = std::string(shown), .set = set},
          std::string("reward: math (LaTeX in the last \\boxed{}) | number (last boxed answer or number) | exact (the "
                      "whole text) | ") +
              other_rules() + " | boxed_NAME | command, remote_rm, judge, code, sandbox_fusion | math:0.9,format:0.1"};
}

std::vector<Flag> reward_flags(RewardConfig& spec) {
  std::vector<Flag> flags = rule_flags(spec.parameters);
  for (Flag& flag : service_flags(spec)) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> training_reward_flags(recipes::RlOptions& options) {
  using rl::RewardFailure, rl::RewardSum;
  const auto set_failure = [&options](const std::string& name) {
    options.on_reward_failure = name == "stop"         ? RewardFailure::stop
                                : name == "drop-group" ? RewardFailure::drop_group
                                                       : RewardFailure::drop_sample;
  };
  const auto set_sum = [&options](const std::string& name) {
    options.reward.sum = name == "normalize_then_sum" ? RewardSum::normalize_then_sum : RewardSum::sum_then_normalize;
  };
  return {
      {"--on-reward-failure", "WHAT", choice("drop-sample|drop-group|stop", "drop-sample", set_failure),
       "of a sample whose reward is unknown: drop-sample (it weighs 0 and leaves its group's baseline) | drop-group "
       "(the next prompt takes its place) | stop"},
      {"--multi-objective-aggregation", "HOW",
       choice("sum_then_normalize|normalize_then_sum", "sum_then_normalize", set_sum),
       "of several rewards: advantages of their sum | sum of each one's advantages, whitened (GDPO)"}};
}

void check_reward(RewardConfig& spec, int64_t max_length, Classified& given) {
  if (!spec.python_path.empty()) {
    if (given.given("--rm-type") != nullptr)
      given.notes.push_back(fmt::format("--rm-type {}: --custom-rm-path goes before it", spec.name()));
    spec.choices = {{.kind = RewardKind::python}};
  }
  for (RewardChoice& choice : spec.choices) {
    rl::RewardRule rule = spec.parameters;
    rule.type = choice.rule.type;
    rule.boxed = choice.rule.boxed;
    choice.rule = rule;
    if (choice.kind == RewardKind::rule) check_overlong(choice.rule, max_length);
  }
  check_readers(spec, given);
  check_missing(spec);
  require_reader(spec, given, "--multi-objective-aggregation", spec.choices.size() > 1, "several rewards in --rm-type");
  for (const RewardChoice& choice : spec.choices)
    if (const std::string difference = rl::rule_difference(choice.rule);
        choice.kind == RewardKind::rule && !difference.empty())
      given.notes.push_back(fmt::format("--rm-type {}: {}", choice.name(), difference));
  if (spec.choices.size() > 1)
    given.notes.push_back(fmt::format(
        "--rm-type {}: the reward is the sum; it is unknown if one of them is (TRL leaves that one out)", spec.name()));
}

}  // namespace lockstep::cli
