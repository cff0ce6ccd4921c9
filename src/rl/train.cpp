#include "rl/train.h"

#include <algorithm>

#include "core/error.h"
#include "core/stopwatch.h"
#include "rl/ask_teacher.h"
#include "rl/batch.h"
#include "rl/policy_logprobs.h"
#include "rl/reference.h"
#include "train/dealt_rows.h"

namespace lockstep::rl {

namespace {

// The version that drew every token; null where several did, or where it is the actor as it is.
std::shared_ptr<const lora::AdapterVersion> drawing_version(const Rollout& rollout, const VersionOf& version_of) {
  if (!version_of) return nullptr;
  std::optional<int64_t> drew;
  for (const Trajectory& trajectory : rollout.trajectories)
    for (size_t t = 0; t < trajectory.tokens.size(); ++t) {
      if (trajectory.mask[t] == 0) continue;
      if (drew && *drew != trajectory.versions[t]) return nullptr;
      drew = trajectory.versions[t];
    }
  return drew ? version_of(*drew) : nullptr;
}

// The mean difference to the teacher, which is in the advantages or will be in the loss.
double learn_from_teacher(std::span<train::Datum> datums, RlParts& parts, const Algorithm& algorithm,
                          const Rollout& rollout, const VersionOf& version_of, const train::Progress& between) {
  std::vector<std::string> teachers;
  for (const Trajectory& trajectory : rollout.trajectories)
    teachers.push_back(trajectory.row ? trajectory.row->teacher : std::string());
  const Asked asked{.teacher = *parts.teacher, .teachers = teachers, .group = parts.group, .between = between};
  double difference = 0;
  if (algorithm.loss.distill.kind != train::DistillKind::none) {
    difference = ask_teacher(datums, algorithm.loss.distill, algorithm.distillation.top, asked);
  } else {
    const auto drew = drawing_version(rollout, version_of);
    difference =
        distill(datums, algorithm.distillation, asked, parts.actor, drew != nullptr ? *drew : parts.actor.adapter());
  }
  parts.teacher->release_memory();
  return difference;
}

void report_difference(TrainReport& report, const LogprobDifference& difference) {
  report.logprob_diff = difference.mean;
  report.logprob_diff_max = difference.max;
}

void measure_prepared(TrainReport& report, std::span<const train::Datum> batch, bool per_token) {
  std::vector<std::vector<float>> logprobs;
  for (const train::Datum& datum : batch) logprobs.push_back(datum.policy_logprobs);
  report_difference(report, measure_logprobs(batch, logprobs, per_token));
}

// The rollout as the trainer reads it, with everything that the loss needs.
std::vector<train::Datum> prepare(RlParts& parts, const Algorithm& algorithm, const Rollout& rollout,
                                  const TrainPlan& plan, const Watch& watch, TrainReport& report) {
  const auto between = [&](int64_t) { watch.stop_if_interrupted(); };
  std::vector<train::Datum> datums = make_datums(rollout.trajectories);
  rollout::Capabilities sampler = parts.sampler.capabilities();
  sampler.exact_logprobs = sampler.exact_logprobs && plan.exact_logprobs && !plan.decoupled;
  const auto drew = plan.decoupled ? nullptr : drawing_version(rollout, plan.version_of);
  set_policy_logprobs(datums, parts.actor, sampler, between, parts.group, drew.get());
  if (algorithm.needs_reference()) set_ref_logprobs(datums, parts.actor, between, parts.reference, parts.group);
  if (!parts.seconds.empty() && plan.release_memory) parts.actor.release_memory();
  for (SecondTrainer* second : parts.seconds) {
    second->prepare(datums, between, parts.group);
    if (plan.release_memory) second->release_memory();
  }
  report.correction = correct(datums, algorithm.correction);
  std::vector<float> rewards;
  for (const Trajectory& trajectory : rollout.trajectories) rewards.push_back(trajectory.reward.value_or(0));
  const bool by_row = has_token_rewards(algorithm.advantage.estimator);
  if (algorithm.objectives.empty())
    set_advantages(datums, rollout.trajectories, by_row ? rewards : shape_rewards(rewards, datums, algorithm.shaping),
                   algorithm.advantage, algorithm.shaping);
  else
    set_advantages(datums, rollout.trajectories,
                   normalized_sum(rollout.trajectories, algorithm.objectives, algorithm.advantage.group),
                   {.group = {.center = false}});
  if (algorithm.needs_teacher())
    report.teacher_kl = learn_from_teacher(datums, parts, algorithm, rollout, plan.version_of, between);
  // The old log-probs that the trainer computed are those of the version that sampled: nothing more has to run.
  const bool of_sampler = drew != nullptr || (!plan.version_of && !plan.decoupled);
  if (plan.train_actor && !sampler.exact_logprobs && sampler.policys_logprobs && of_sampler)
    measure_prepared(report, step_batch(datums, 0, plan.batch_size), algorithm.reduction.per_token());
  return datums;
}

// By a forward of its own: the one of the step has dropout, or other versions.
void measure_apart(TrainReport& report, RlParts& parts, const Algorithm& algorithm,
                   std::span<const train::Datum> datums, std::span<const Trajectory> trajectories,
                   const VersionOf& version_of, const Watch& watch) {
  const auto between = [&](int64_t) { watch.stop_if_interrupted(); };
  const lora::AdapterVersion now = parts.actor.adapter();
  const auto by_now = [&](std::span<const train::Datum> share) { return parts.actor.logprobs(share, &now, between); };
  const auto by_version = [&](std::span<const train::Datum> share) {
    const auto first = static_cast<size_t>(share.data() - datums.data());
    return logprobs_by_version(parts.actor, share, trajectories.subspan(first, share.size()), version_of, between);
  };
  const auto logprobs =
      version_of ? train::dealt_rows(parts.group, datums, by_version) : train::dealt_rows(parts.group, datums, by_now);
  if (logprobs.size() < datums.size()) return;  // a version is not there any more
  report_difference(report, measure_logprobs(datums, logprobs, algorithm.reduction.per_token()));
}

// A step with what its loss wants to know of all its datums first.
struct PreparedStep {
  std::vector<train::Datum> chosen;  // empty: the datums as they are
  train::PolicyLoss loss;
};

PreparedStep prepare_step(RlParts& parts, const Algorithm& algorithm, uint64_t seed,
                          std::span<const train::Datum> batch, const train::Progress& between, double& entropy_coef) {
  PreparedStep step{.chosen = {}, .loss = algorithm.loss};
  if (!algorithm.choice.is_needed() && !algorithm.entropy_control.on) return step;
  const lora::AdapterVersion now = parts.actor.adapter();
  const std::vector<train::RowOutputs> outputs =
      train::dealt_outputs(parts.group, batch.size(), [&](size_t first, size_t count) {
        return parts.actor.row_outputs(batch.subspan(first, count), &now, {.entropy = true}, between);
      });
  if (algorithm.entropy_control.on) {
    const double entropy = train::mean_entropy(batch, outputs);
    entropy_coef = adapted_entropy(algorithm.entropy_control, entropy_coef, entropy);
    step.loss.entropy_coef = entropy <= algorithm.entropy_control.target ? static_cast<float>(entropy_coef) : 0.0f;
  }
  if (!algorithm.choice.is_needed()) return step;
  step.chosen.assign(batch.begin(), batch.end());
  train::choose_rows(algorithm.choice, step.loss, step.chosen, outputs, seed,
                     static_cast<uint32_t>(parts.actor.steps()));
  return step;
}

// While it lives the observer is told of the rows that the trainer computes.
class ObservedRows {
 public:
  ObservedRows(TrainObserver* observer, train::Trainer& trainer, int64_t first) : trainer_(trainer) {
    if (observer == nullptr) return;
    trainer_.watch_rows(
        [observer, first](int64_t sample, std::span<const float> logprob, std::span<const float> entropy) {
          observer->trained(first + sample, logprob, entropy);
        });
  }
  ~ObservedRows() { trainer_.watch_rows({}); }
  ObservedRows(const ObservedRows&) = delete;
  ObservedRows& operator=(const ObservedRows&) = delete;

 private:
  train::Trainer& trainer_;
};

void require_critic(const RlParts& parts, const Algorithm& algorithm) {
  if (!algorithm.needs_critic() || !parts.seconds.empty()) return;
  throw ConfigError({.what = "the advantages of ppo need a critic", .where = "RlParts::seconds"});
}

// Sums, of which take_means makes means over the steps that were taken.
void add_step(TrainReport& report, const train::StepReport& taken) {
  const train::Metrics& metrics = taken.metrics;
  report.loss += taken.loss;
  report.objective += metrics.objective;
  report.reference_kl += metrics.reference_kl;
  report.entropy += metrics.entropy;
  report.clip_fraction += metrics.clip_fraction;
  report.sequence_mask += metrics.sequence_mask;
  report.policy_kl += metrics.policy_kl;
  report.ratio += metrics.ratio;
  report.distillation += metrics.distillation;
  report.grad_norm = std::max(report.grad_norm, taken.grad_norm);
}

void take_means(TrainReport& report, int64_t steps) {
  for (double* sum : {&report.loss, &report.objective, &report.reference_kl, &report.entropy, &report.clip_fraction,
                      &report.sequence_mask, &report.policy_kl, &report.ratio, &report.distillation})
    *sum /= static_cast<double>(steps);
}

void train_actor(RlParts& parts, const Algorithm& algorithm, std::span<const train::Datum> datums,
                 const TrainPlan& plan, const Watch& watch, TrainReport& report) {
  const int64_t steps = num_steps(datums.size(), plan.batch_size);
  int64_t taken_steps = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const bool may_stop = step == 0 && parts.seconds.empty();  // nothing has changed yet
    const auto stop = [&](int64_t) {
      if (may_stop) watch.stop_if_interrupted();
    };
    const auto between = [&](int64_t done) {
      watch.report(step * plan.batch_size + done, static_cast<int64_t>(datums.size()));
      stop(done);
    };
    const std::span<const train::Datum> whole = step_batch(datums, step, plan.batch_size);
    if (!has_weight(whole)) {
      ++report.skipped_steps;
      continue;
    }
    const ObservedRows observed(plan.observer, parts.actor, step * plan.batch_size);
    const PreparedStep prepared = prepare_step(parts, algorithm, plan.seed, whole, stop, report.next.entropy);
    const auto taken =
        take_step(parts.actor, prepared.chosen.empty() ? whole : prepared.chosen, prepared.loss,
                  plan.schedule.at(parts.actor.steps()), algorithm.reduction, between, plan.on_not_finite);
    if (!taken) {
      ++report.abandoned_steps;
      continue;
    }
    add_step(report, *taken);
    ++taken_steps;
    report.rank_load.add(parts.actor, whole, 1, parts.group == nullptr ? 1 : parts.group->size());
    // Only the first batch is trained by the version that sampled it.
    if (step > 0 || plan.dropout || plan.version_of) continue;
    report.logprob_diff = taken->metrics.logprob_diff;
    report.logprob_diff_max = taken->metrics.logprob_diff_max;
  }
  report.actor_trained = taken_steps > 0;
  if (report.actor_trained) take_means(report, taken_steps);
}

void publish(RlParts& parts, const TrainPlan& plan, TrainReport& report) {
  const auto known = parts.store.find(lora::kActor);
  const lora::PolicyId next{lora::kActor, known ? known->newest() + 1 : 0};
  try {
    report.published = parts.store.publish(lora::kActor, parts.actor.adapter());
  } catch (...) {
    if (!plan.on_not_published) throw;
    report.published.policy = next;
    plan.on_not_published(std::current_exception());
  }
}

}  // namespace

TrainReport rl_train(RlParts& parts, const Algorithm& algorithm, const Rollout& rollout, const TrainPlan& plan,
                     const Watch& watch) {
  const Stopwatch clock;
  const int64_t steps = num_steps(rollout.trajectories.size(), plan.batch_size);
  require_critic(parts, algorithm);
  TrainReport report{.actor_trained = plan.train_actor, .lr = plan.schedule.at(parts.actor.steps())};
  const std::vector<train::Datum> datums = prepare(parts, algorithm, rollout, plan, watch, report);
  if (plan.observer != nullptr) plan.observer->prepared(datums);
  report.next = {.kl_reward = algorithm.shaping.kl_coef, .entropy = algorithm.loss.entropy_coef};
  if (algorithm.kl_control.target != 0)
    if (const auto kl = mean_kl(datums, false, algorithm.shaping.kl_type))  // else nothing was measured
      report.next.kl_reward =
          adapted_kl(algorithm.kl_control, algorithm.shaping.kl_coef, *kl, static_cast<double>(datums.size()));
  report.mismatch = measure_mismatch(datums);
  if (algorithm.needs_reference()) report.kl = mean_kl(datums, algorithm.reduction.per_token());
  const bool apart = plan.dropout || plan.version_of;
  if (apart && plan.measure_logprobs && !report.logprob_diff)
    measure_apart(report, parts, algorithm, step_batch(datums, 0, plan.batch_size), rollout.trajectories,
                  plan.version_of, watch);
  if (!parts.seconds.empty() && plan.release_memory) parts.actor.release_memory();
  for (SecondTrainer* second : parts.seconds) {
    report.seconds.push_back(second->train(datums, plan.batch_size, algorithm.reduction, watch));
    if (plan.release_memory) second->release_memory();
  }
  if (plan.train_actor) train_actor(parts, algorithm, datums, plan, watch, report);
  if (plan.release_memory) parts.actor.release_memory();
  parts.actor.finish_update();
  report.train_ms = clock.ms();
  if (plan.train_actor && report.abandoned_steps < steps) publish(parts, plan, report);
  return report;
}

}  // namespace lockstep::rl
