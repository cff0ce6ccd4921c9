#include "rl/train.h"

#include <algorithm>

#include "core/error.h"
#include "rl/batch.h"
#include "rl/policy_logprobs.h"
#include "rl/reference.h"
#include "train/train_step.h"

namespace lockstep::rl {

namespace {

int64_t num_steps(size_t samples, int64_t batch_size) {
  const auto count = static_cast<int64_t>(samples);
  if (batch_size < 1 || count == 0 || count % batch_size != 0)
    throw ConfigError({.what = "a rollout cannot be cut into optimizer steps",
                       .where = "batch_size",
                       .got = std::to_string(batch_size),
                       .wanted = "a divisor of " + std::to_string(count) + ", the samples of a rollout"});
  return count / batch_size;
}

// The rollout as the trainer reads it, with everything that the loss needs.
std::vector<train::Datum> prepare(RlParts& parts, const Algorithm& algorithm, const Rollout& rollout,
                                  const Watch& watch) {
  const auto between = [&](int64_t) { watch.stop_if_interrupted(); };
  std::vector<train::Datum> datums = make_datums(rollout.trajectories);
  set_policy_logprobs(datums, parts.actor, parts.sampler.capabilities().exact_logprobs, between);
  if (algorithm.needs_reference()) set_ref_logprobs(datums, parts.actor, between);
  std::vector<float> rewards;
  for (const Trajectory& trajectory : rollout.trajectories) rewards.push_back(trajectory.reward);
  set_advantages(datums, rollout.trajectories, shape_rewards(rewards, datums, algorithm.shaping), algorithm.advantage);
  return datums;
}

void measure_without_dropout(TrainReport& report, RlParts& parts, const Algorithm& algorithm,
                             std::span<const train::Datum> datums, const Watch& watch) {
  const lora::AdapterVersion now = parts.actor.adapter();
  const auto logprobs = parts.actor.logprobs(datums, &now, [&](int64_t) { watch.stop_if_interrupted(); });
  const LogprobDifference difference = measure_logprobs(datums, logprobs, algorithm.per_token_loss);
  report.logprob_diff = difference.mean;
  report.logprob_diff_max = difference.max;
}

}  // namespace

TrainReport rl_train(RlParts& parts, const Algorithm& algorithm, const Rollout& rollout, const TrainPlan& plan,
                     const Watch& watch) {
  const Stopwatch clock;
  const int64_t steps = num_steps(rollout.trajectories.size(), plan.batch_size);
  const std::vector<train::Datum> datums = prepare(parts, algorithm, rollout, watch);
  TrainReport report{.lr = plan.schedule.at(parts.actor.steps())};
  report.mismatch = measure_mismatch(datums);
  if (algorithm.needs_reference()) report.kl = mean_kl(datums, algorithm.per_token_loss);
  if (plan.dropout && plan.measure_logprobs)
    measure_without_dropout(report, parts, algorithm, step_batch(datums, 0, plan.batch_size), watch);
  for (int64_t step = 0; step < steps; ++step) {
    const auto between = [&](int64_t done) {
      watch.report(step * plan.batch_size + done, static_cast<int64_t>(datums.size()));
      if (step == 0) watch.stop_if_interrupted();
    };
    const train::StepReport taken =
        train::train_step(parts.actor, step_batch(datums, step, plan.batch_size), algorithm.loss,
                          plan.schedule.at(parts.actor.steps()), algorithm.per_token_loss, between);
    report.entropy += taken.metrics.entropy / static_cast<double>(steps);
    report.grad_norm = std::max(report.grad_norm, taken.grad_norm);
    // Only the first batch is trained by the version that sampled it.
    if (step > 0 || plan.dropout) continue;
    report.logprob_diff = taken.metrics.logprob_diff;
    report.logprob_diff_max = taken.metrics.logprob_diff_max;
  }
  if (plan.release_memory) parts.actor.release_memory();
  report.train_ms = clock.ms();
  report.published = parts.store.publish(lora::kActor, parts.actor.adapter());
  return report;
}

}  // namespace lockstep::rl
