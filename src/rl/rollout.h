// A rollout: samples of a batch of prompts, with their rewards.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/parts.h"
#include "rl/trajectory.h"
#include "rollout/sample_groups.h"

namespace lockstep::rl {

struct RolloutRequest {
  std::vector<rollout::Prompt> prompts;
  std::vector<std::shared_ptr<const RewardRow>> rows = {};  // one per prompt
  rollout::GroupParams params = {};
  lora::PolicyId policy = {};    // that samples; the base by default
  bool greedy_baseline = false;  // one greedy sample of each prompt beside them, for Trajectory::baseline
  RewardFailure on_reward_failure = RewardFailure::drop_sample;
};

struct RewardPartMean {
  std::string name;
  double mean = 0;  // over the samples of which it is known
};

struct RolloutReport {
  int64_t version = 0;                // the oldest that chose a token
  std::optional<double> reward = {};  // mean of the known ones, as graded, before shaping; none: all are unknown
  std::vector<RewardPartMean> reward_parts = {};
  int64_t reward_unknown = 0;       // samples
  std::string reward_failure = {};  // why the first of these is unknown
  double response_len = 0;
  int64_t tokens = 0;                    // rows to train on
  double rollout_ms = 0, reward_ms = 0;  // of waiting for samples; of waiting for rewards when all samples were there
};

// Samples whose reward is unknown, where a rollout is made of groups that were graded one by one.
struct UnknownRewards {
  int64_t count = 0;
  std::string failure = {};  // why the first of them is

  void add(std::span<const GradedSample> group, uint32_t row);  // samples of this row of the data
  void write_to(RolloutReport& report) const;
};

struct Rollout {
  std::vector<Trajectory> trajectories;  // in order of (prompt, sample)
  RolloutReport report;
};

// What a report says of these samples, but for times and the first failure.
RolloutReport summarize(std::span<const Trajectory> trajectories);

}  // namespace lockstep::rl
