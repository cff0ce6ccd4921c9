#include "recipes/rollouts_by_rule.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::recipes {

RolloutsByRule::RolloutsByRule(const StalenessRule& rule, bool together, RolloutSampling& sampling,
                               rollout::Sampler& sampler, const SampledVersions& versions, const TrainingRun& run,
                               RunProgress& progress, int64_t total, bool chooses_by_time)
    : rule_(rule),
      sampling_(sampling),
      sampler_(sampler),
      versions_(versions),
      run_(run),
      progress_(progress),
      total_(total),
      alone_(chooses_by_time ? run.iteration() : -1) {
  if (rule_.is_synchronous()) return;
  if (together) {
    together_.emplace(run.iteration(), run.data_position(), sampling);
    return;
  }
  ahead_.emplace(run.iteration(), run.data_position(),
                 [this](const SamplingJob& job, const std::function<bool()>& stopping) {
                   return sampling_.sample(job, {.progress =
                                                     [this](int64_t done, int64_t of) {
                                                       done_ = {static_cast<int32_t>(done), static_cast<int32_t>(of)};
                                                     },
                                                 .interrupted = stopping});
                 });
}

template <class Rollouts>
void RolloutsByRule::begin(Rollouts& rollouts, int64_t last) {
  while (rollouts.next() <= std::min(last, total_ - 1) && versions_.has(rollouts.next()))
    rollouts.begin(versions_.pin(rollouts.next()));
}

SampledRollout RolloutsByRule::next(int64_t rollout) {
  if (together_) {
    begin(*together_, rollout + rule_.most_ahead());
    return together_->take(progress_.watch(rollout, "sampling"));
  }
  if (ahead_) {
    begin(*ahead_, rollout + (rollout == alone_ ? 0 : rule_.most_ahead()));
    return ahead_->take([&] { wait_for_samples(rollout); });
  }
  SampledRollout sampled =
      sampling_.sample({.rollout = rollout, .rows_begin = run_.data_position(), .version = versions_.pin(rollout)},
                       progress_.watch(rollout, "sampling"));
  sampler_.release_memory();  // training needs it
  return sampled;
}

int64_t RolloutsByRule::finish(const SampledRollout& sampled) {
  return sampling_.order().finish(sampled.gates);
}

SampledRollout RolloutsOfOneVersion::next(int64_t rollout) {
  SampledRollout sampled =
      sampling_.sample({.rollout = rollout, .rows_begin = rows_begin_, .version = versions_.pin_newest()},
                       progress_.watch(rollout, "sampling"));
  rows_begin_ = sampled.rows_end;
  return sampled;
}

void RolloutsByRule::rest() {
  if (together_) together_->rest(progress_.watch(run_.iteration(), "sampling"));
  if (ahead_) ahead_->wait_until_idle([&] { wait_for_samples(run_.iteration()); });
}

void RolloutsByRule::take_graded() {
  if (together_) together_->take_graded();
}

void RolloutsByRule::wait_for_samples(int64_t rollout) {
  progress_.while_sampling();
  const Done now = done_.load();
  if (now.of > 0) progress_.report(rollout, "sampling", now.done, now.of);
}

}  // namespace lockstep::recipes
