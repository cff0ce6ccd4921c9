// A rollout: samples of a batch of prompts, with their rewards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/stopwatch.h"
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

// In flight. What else is done meanwhile, training and publishing included, changes none of its samples.
struct PendingRollout {
  // A sample of the rollout, as RlParts::graded had it.
  struct Found {
    int64_t prompt = 0, index = 0;
    GradedSample graded;
  };
  RolloutRequest request;
  std::vector<Found> found = {};
  std::vector<int64_t> whole = {};                       // prompts all of whose samples are drawn
  rollout::GroupTickets tickets;                         // of these
  std::vector<std::pair<int64_t, int64_t>> single = {};  // prompt and index of the others that are drawn
  rollout::GroupTickets single_tickets = {};
  rollout::GroupTickets greedy = {};
  Stopwatch since;
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
  double rollout_ms = 0, reward_ms = 0;  // the latter: of waiting for rewards when all samples were there
};

struct Rollout {
  std::vector<Trajectory> trajectories;  // in order of (prompt, sample)
  RolloutReport report;
};

// What a report says of these samples, but for times and the first failure.
RolloutReport summarize(std::span<const Trajectory> trajectories);

// Asks the sampler for the samples that RlParts::graded does not have. What Sampler::submit throws; nothing is in
// flight then.
PendingRollout rl_submit(RlParts& parts, RolloutRequest request);

// Waits for the samples; each is handed to the reward when it, or its group, has finished. Cancelled when interrupted;
// DataError for an unknown reward with RewardFailure::stop; what collect_groups and the reward throw. The rollout is
// gone then.
Rollout rl_collect(RlParts& parts, const PendingRollout& pending, const Watch& watch = {});

}  // namespace lockstep::rl
