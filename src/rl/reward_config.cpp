#include "rl/reward_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/fs.h"
#include "rl/code_reward.h"
#include "rl/command_reward.h"
#include "rl/mixed_reward.h"
#include "rl/python_reward.h"
#include "rl/remote_reward.h"
#include "rl/rule_reward.h"

namespace lockstep::rl {

namespace {

// "http://HOST:PORT/PATH?QUERY" as an address and what is asked of it.
HttpRewardOptions http_options(const RewardConfig& spec, const std::string& default_path) {
  constexpr const char* kField = "RewardConfig::url";
  if (spec.url.empty())
    throw ConfigError(
        {.what = "a reward that a service gives needs its URL", .where = kField, .wanted = "http://HOST:PORT/PATH"});
  const size_t scheme = spec.url.find("://");
  const size_t host = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t slash = std::min(spec.url.find_first_of("/?", host), spec.url.size());
  const bool has_path = slash < spec.url.size() && spec.url[slash] == '/';
  HttpRewardOptions options{
      .address = net::parse_address(spec.url.substr(0, has_path ? slash : spec.url.size()), kField),
      .path = has_path ? spec.url.substr(slash) : "/",
      .api_key = spec.api_key,
      .timeout = spec.timeout};
  if (options.path == "/") options.path = default_path;
  net::require_one_authorization(options.address, spec.api_key, kField);
  return options;
}

std::unique_ptr<Reward> command_reward(const RewardConfig& spec, const RewardKeys& keys, bool python) {
  net::LinePoolOptions pool{
      .command = spec.command, .num_programs = static_cast<size_t>(spec.workers), .timeout = spec.timeout};
  if (python) run_python(pool, spec.python_path, spec.groups, keys.input, keys.metadata);
  if (pool.command.empty())
    throw ConfigError({.what = "a reward by a program needs its command", .where = "RewardConfig::command"});
  return std::make_unique<CommandReward>(
      CommandRewardOptions{.pool = std::move(pool), .groups = spec.groups, .reward_key = spec.reward_key});
}

std::unique_ptr<Reward> judge_reward(const RewardConfig& spec) {
  if (spec.judge_model.empty())
    throw ConfigError({.what = "a judge needs the name of its model", .where = "RewardConfig::judge_model"});
  JudgeOptions judge{.model = spec.judge_model, .max_tokens = spec.judge_max_tokens};
  if (!spec.judge_prompt_file.empty()) {
    judge.prompt = fs::read_file(spec.judge_prompt_file);
    if (judge.prompt.find("{response}") == std::string::npos)
      throw ConfigError({.what = "the judge's prompt has no place for the response",
                         .where = spec.judge_prompt_file,
                         .wanted = "{response} in it; {prompt} and {label} if it needs them"});
  }
  return std::make_unique<JudgeReward>(http_options(spec, "/v1/chat/completions"), std::move(judge));
}

std::unique_ptr<Reward> make_one(const RewardChoice& choice, const RewardConfig& spec, const RewardKeys& keys) {
  switch (choice.kind) {
    case RewardKind::rule: return std::make_unique<RuleReward>(choice.rule);
    case RewardKind::command: return command_reward(spec, keys, false);
    case RewardKind::python: return command_reward(spec, keys, true);
    case RewardKind::remote: return std::make_unique<RemoteReward>(http_options(spec, "/"), spec.reward_key);
    case RewardKind::judge: return judge_reward(spec);
    case RewardKind::code:
      return std::make_unique<CodeReward>(CodeRewardOptions{.workers = spec.workers,
                                                            .timeout = std::chrono::seconds(spec.code_timeout_s),
                                                            .memory_mb = spec.code_memory_mb});
    case RewardKind::sandbox_fusion:
      return std::make_unique<SandboxFusionReward>(
          http_options(spec, "/run_code"),
          SandboxFusionOptions{.run_timeout_s = spec.code_timeout_s, .memory_mb = spec.code_memory_mb});
  }
  return nullptr;
}

}  // namespace

std::string RewardChoice::name() const {
  switch (kind) {
    case RewardKind::rule: return rule_name(rule);
    case RewardKind::command: return "command";
    case RewardKind::python: return "custom";
    case RewardKind::remote: return "remote_rm";
    case RewardKind::judge: return "judge";
    case RewardKind::code: return "code";
    case RewardKind::sandbox_fusion: return "sandbox_fusion";
  }
  return {};
}

const RewardRule* RewardConfig::only_rule() const {
  return choices.size() == 1 && choices[0].kind == RewardKind::rule ? &choices[0].rule : nullptr;
}

bool RewardConfig::has(RewardKind kind) const {
  return std::ranges::any_of(choices, [kind](const RewardChoice& choice) { return choice.kind == kind; });
}

bool RewardConfig::reads_rows() const {
  return has(RewardKind::command) || has(RewardKind::python);
}

std::string RewardConfig::name() const {
  if (choices.size() == 1 && choices[0].weight == 1) return choices[0].name();
  std::string text;
  for (const RewardChoice& choice : choices)
    text += fmt::format("{}{:g} {}", text.empty() ? "" : " + ", choice.weight, choice.name());
  return text;
}

std::unique_ptr<Reward> make_reward(const RewardConfig& spec, const RewardKeys& keys) {
  if (spec.choices.size() == 1 && spec.choices[0].weight == 1) return make_one(spec.choices[0], spec, keys);
  std::vector<RewardTerm> terms;
  for (const RewardChoice& choice : spec.choices) terms.push_back({.name = choice.name(), .weight = choice.weight});
  for (const bool forks : {true, false})  // the others have threads
    for (size_t k = 0; k < terms.size(); ++k)
      if ((spec.choices[k].kind == RewardKind::code) == forks) terms[k].reward = make_one(spec.choices[k], spec, keys);
  return std::make_unique<MixedReward>(std::move(terms));
}

}  // namespace lockstep::rl
