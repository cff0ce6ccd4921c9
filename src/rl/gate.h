// Which groups of a rollout are trained on.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "rl/rollout.h"

namespace lockstep::rl {

// Whether the known rewards of a group differ: population standard deviation > 1e-8. Source: DAPO's dynamic sampling,
// arXiv 2503.14476; slime's and miles' check_reward_nonzero_std.
bool has_spread(std::span<const Trajectory> group);

// Samples that ended because they were long learn nothing (mask 0); their rewards stay in their groups' baselines.
// Returns their number. Source: DAPO's overlong filtering; TRL's mask_truncated_completions.
int64_t mask_truncated(std::span<Trajectory> trajectories);

struct GatePlan {
  bool need_spread = false;   // has_spread
  bool need_rewards = false;  // every reward of the group is known
  int64_t groups = 0;         // to train on
  int64_t prompts = 0;        // asked for in a round: `groups` or more (over-sampling)
  int64_t max_rounds = 10;
};

struct GateReport {
  int64_t rounds = 0;
  int64_t sampled = 0;       // groups that were sampled
  int64_t dropped = 0;       // of those up to the last that is used: groups that did not pass
  int64_t prompts_used = 0;  // up to and with the last group that is used: where the next rollout goes on
  std::vector<std::optional<double>> group_rewards = {};  // of these, in order: the mean of the known rewards
};

// The DataError of a rollout for which too few groups pass.
[[noreturn]] void throw_too_few_groups(const GatePlan& plan, const GateReport& report, int64_t passed);

struct GatedRollout {
  Rollout
      rollout;  // `groups` groups, numbered anew in their order; its unknown rewards are those of all that was sampled
  GateReport report;
};

// Samples rounds of prompts until enough groups pass. draw(first, count) samples prompts first .. first + count - 1 of
// this rollout. The first groups that pass, in the order of their prompts, are used, whatever was finished first; the
// others are forgotten, and their prompts are the next rollout's. DataError with the counts after max_rounds.
GatedRollout gated_rollout(const GatePlan& plan, const std::function<Rollout(int64_t first, int64_t count)>& draw);

}  // namespace lockstep::rl
