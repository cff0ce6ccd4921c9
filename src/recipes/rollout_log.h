// What a rollout and the training on it say in metrics.jsonl and on the terminal.
#pragma once

#include <span>
#include <string>

#include "core/json.h"
#include "rl/pass_rate.h"
#include "rl/train.h"

namespace lockstep::recipes {

// The line of rollout `step`, whose sampling and training took `iteration_ms`. Numbers of a training that did not take
// place are null.
OrderedJson rollout_metrics(int64_t step, const rl::Rollout& rollout, const rl::TrainReport& trained,
                            double iteration_ms);

void add_mismatch(OrderedJson& line, const rl::Mismatch& mismatch);
void add_correction(OrderedJson& line, const rl::TrainReport& trained);
void add_pass_rates(OrderedJson& line, const std::string& prefix, std::span<const rl::PassRate> rates);  // PREFIXpass@k
OrderedJson or_null(const std::optional<double>& value);
OrderedJson of_actor(const rl::TrainReport& trained, double value);  // null: the actor was not trained

// The terminal's line of rollout `step` of `of`; `left`: the time that is left, as text.
std::string rollout_text(int64_t step, int64_t of, const rl::Rollout& rollout, const rl::TrainReport& trained,
                         double iteration_ms, const std::string& left);
// Of a rollout of `samples` some of whose rewards are unknown.
std::string unknown_rewards_text(int64_t step, int64_t of, int64_t samples, const rl::RolloutReport& sampled,
                                 const rl::TrainReport& trained);
// Of a rollout that max_rl makes advantages of; empty: no group's mean reward is negative.
std::string negative_groups_text(int64_t step, int64_t of, std::span<const rl::Trajectory> trajectories);

}  // namespace lockstep::recipes
