// A rollout: samples of a batch of prompts, with their rewards.
#pragma once

#include <string>
#include <vector>

#include "core/stopwatch.h"
#include "rl/parts.h"
#include "rl/trajectory.h"
#include "rollout/sample_groups.h"

namespace lockstep::rl {

struct RolloutRequest {
  std::vector<rollout::Prompt> prompts;
  std::vector<std::string> labels = {};  // one per prompt, or none at all
  rollout::GroupParams params = {};
  lora::PolicyId policy = {};  // that samples; the base by default
  bool greedy_baseline = false;  // one greedy sample of each prompt beside them, for Trajectory::baseline
};

// In flight. What else is done meanwhile, training and publishing included, changes none of its samples.
struct PendingRollout {
  RolloutRequest request;
  rollout::GroupTickets tickets;
  rollout::GroupTickets greedy = {};
  Stopwatch since;
};

struct RolloutReport {
  int64_t version = 0;  // the oldest that chose a token
  double reward = 0;    // mean, as graded, before shaping
  double response_len = 0;
  int64_t tokens = 0;  // rows to train on
  double rollout_ms = 0, reward_ms = 0;
};

struct Rollout {
  std::vector<Trajectory> trajectories;  // in order of (prompt, sample)
  RolloutReport report;
};

// Asks the sampler for the samples. What Sampler::submit throws; nothing is in flight then.
PendingRollout rl_submit(RlParts& parts, RolloutRequest request);

// Waits for the samples and grades them. Cancelled when interrupted; what collect_groups and the reward throw. The
// rollout is gone then.
Rollout rl_collect(RlParts& parts, const PendingRollout& pending, const Watch& watch = {});

}  // namespace lockstep::rl
