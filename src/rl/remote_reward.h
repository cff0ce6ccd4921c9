// --rm-type remote_rm, judge, sandbox_fusion: what is asked of each service, and how its answers are read.
#pragma once

#include "rl/http_reward.h"

namespace lockstep::rl {

// {"prompt", "response", "label"} -> the reward (score_of_json), as slime and miles ask for it.
class RemoteReward : public HttpReward {
 public:
  RemoteReward(HttpRewardOptions options, std::string reward_key)
      : HttpReward(std::move(options)), reward_key_(std::move(reward_key)) {}

 protected:
  std::vector<std::string> requests(const RewardSample& sample, std::string& failure) const override;
  Score read(const RewardSample& sample, const std::vector<std::string>& answers) const override;

 private:
  const std::string reward_key_;
};

struct JudgeOptions {
  std::string model;
  std::string prompt = {};  // with {prompt}, {response}, {label} where they go; empty: judge_prompt()
  int64_t max_tokens = 512;
};
const char* judge_prompt();

// An OpenAI chat completion of temperature 0, whose last <score>NUMBER</score> is the reward. Without one: unknown.
class JudgeReward : public HttpReward {
 public:
  JudgeReward(HttpRewardOptions options, JudgeOptions judge)
      : HttpReward(std::move(options)), judge_(std::move(judge)) {}

 protected:
  std::vector<std::string> requests(const RewardSample& sample, std::string& failure) const override;
  Score read(const RewardSample& sample, const std::vector<std::string>& answers) const override;

 private:
  const JudgeOptions judge_;
};

struct SandboxFusionOptions {
  int64_t run_timeout_s = 10;
  int64_t memory_mb = 1024;
};

// Runs the response's code on each case of the label (rl/reward/code.h) by Sandbox Fusion's /run_code. The reward is
// the share of cases that pass; unknown where the sandbox itself fails.
class SandboxFusionReward : public HttpReward {
 public:
  SandboxFusionReward(HttpRewardOptions options, SandboxFusionOptions sandbox)
      : HttpReward(std::move(options)), sandbox_(sandbox) {}

 protected:
  std::vector<std::string> requests(const RewardSample& sample, std::string& failure) const override;
  Score read(const RewardSample& sample, const std::vector<std::string>& answers) const override;

 private:
  const SandboxFusionOptions sandbox_;
};

}  // namespace lockstep::rl
