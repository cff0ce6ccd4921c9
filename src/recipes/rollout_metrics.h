// What a line of metrics.jsonl says of a rollout's samples beside their means.
#pragma once

#include "core/json.h"
#include "core/stream.h"
#include "rl/rollout.h"

namespace lockstep::recipes {

// Adds these numbers over the samples; what has no value, because no reward is known, is left out.
//   reward_std, reward_min, reward_max     of the known rewards (population standard deviation)
//   reward/NAME_std                        the same of each reward, where there are several
//   frac_reward_zero_std                   share of the groups whose known rewards are all equal (TRL's name)
//   response_len_min, response_len_max     tokens
//   truncated                              share of the responses that were cut at the longest length
//   staleness, staleness_max               trained_version - version of the sampled tokens: mean and largest
void add_rollout_metrics(OrderedJson& line, std::span<const rl::Trajectory> trajectories, int64_t trained_version);

// Adds memory_bytes, what this process holds, and gpu_memory_bytes, what is in use of a GPU.
void add_memory(OrderedJson& line, const Stream& stream);

}  // namespace lockstep::recipes
