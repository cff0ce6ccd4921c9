// Which rewards a run has, as a value, and the Reward that it describes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rl/reward.h"
#include "rl/reward/rule.h"

namespace lockstep::rl {

enum class RewardKind { rule, command, python, remote, judge, code, sandbox_fusion };

struct RewardChoice {
  RewardKind kind = RewardKind::rule;
  RewardRule rule = {};  // of RewardKind::rule
  double weight = 1;

  std::string name() const;  // "math", "command", "remote_rm", ...
};

// What advantages are made of where there are several rewards (rl/objectives.h).
enum class RewardSum { sum_then_normalize, normalize_then_sum };

struct RewardConfig {
  std::vector<RewardChoice> choices = {{}};  // one: its reward; more: their weighted sum, with parts
  RewardSum sum = RewardSum::sum_then_normalize;
  RewardRule parameters = {};                  // of all rules among the choices
  bool groups = false;                         // command and python get all samples of a prompt at once
  std::string reward_key;                      // of rewards that are objects
  std::chrono::milliseconds timeout{120'000};  // of one sample, attempts included
  int64_t workers = 4;                         // programs, or cases of code that run at once
  std::string command;                         // of RewardKind::command, for /bin/sh
  std::string python_path;                     // module.function
  std::string url;                             // http://HOST:PORT/PATH of remote, judge, sandbox_fusion
  std::string api_key;                         // of url
  std::string judge_model, judge_prompt_file;  // empty file: judge_prompt()
  int64_t judge_max_tokens = 512;
  int64_t code_timeout_s = 10, code_memory_mb = 1024;  // of one case

  // The rule, if that is all there is.
  const RewardRule* only_rule() const;
  bool has(RewardKind kind) const;
  bool reads_rows() const;   // whether RewardRow::json is wanted
  std::string name() const;  // "math", "0.9 math + 0.1 format"
};

struct RewardKeys {
  std::string input = "input", metadata = "metadata";  // keys of a dataset row
};

// ConfigError: what is missing or cannot be; ResourceError: what cannot be started; DataError: a file that cannot be
// read.
// RewardKind::code is made before there are threads: its sandboxes are forked from this process.
std::unique_ptr<Reward> make_reward(const RewardConfig& spec, const RewardKeys& keys);

}  // namespace lockstep::rl
