#include "recipes/rollouts_by_rule.h"

#include <algorithm>

#include "core/error.h"
#include "parallel/gather.h"

namespace lockstep::recipes {

RolloutsByRule::RolloutsByRule(const StalenessRule& rule, RolloutSampling& sampling, rollout::Sampler& sampler,
                               const SampledVersions& versions, const TrainingRun& run, RunProgress& progress,
                               int64_t total, parallel::Group& group, bool on_gpu)
    : rule_(rule),
      sampling_(sampling),
      sampler_(sampler),
      versions_(versions),
      run_(run),
      progress_(progress),
      total_(total),
      group_(group),
      alone_(on_gpu ? run.iteration() : -1),
      waits_for_tail_(on_gpu) {
  if (rule_.is_synchronous()) return;
  ahead_.emplace(run.iteration(), run.data_position(),
                 [this](const SamplingJob& job, const std::function<bool()>& stopping) {
                   return sampling_.sample(job, {.progress =
                                                     [this](int64_t done, int64_t of) {
                                                       done_ = {static_cast<int32_t>(done), static_cast<int32_t>(of)};
                                                     },
                                                 .interrupted = stopping});
                 });
}

SampledRollout RolloutsByRule::next(int64_t rollout) {
  if (!ahead_) {
    SampledRollout sampled =
        sampling_.sample({.rollout = rollout, .rows_begin = run_.data_position(), .version = versions_.pin(rollout)},
                         progress_.watch(rollout, "sampling"));
    sampler_.release_memory();  // training needs it
    return sampled;
  }
  const int64_t last = rollout + (rollout == alone_ ? 0 : rule_.most_ahead());
  while (ahead_->next() < total_ && ahead_->next() <= last && versions_.has(ahead_->next()))
    ahead_->begin(versions_.pin(ahead_->next()));
  SampledRollout sampled = ahead_->take([&] { wait_for_samples(rollout); });
  if (waits_for_tail_ && train_ms_ > 0) ahead_->wait_for_tail(train_ms_, [&] { wait_for_samples(rollout); });
  training_ = {};
  return sampled;
}

int64_t RolloutsByRule::finish(const SampledRollout& sampled) {
  if (ahead_ && waits_for_tail_) {
    // A rank that began early has waited for the others meanwhile: the shortest time is the time of the work. Were it
    // each rank's own, the early one would begin still earlier next time.
    const double mine = training_.ms();
    train_ms_ = std::ranges::min(parallel::gather_values(group_, std::span(&mine, 1)));
  }
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
  if (ahead_) ahead_->wait_until_idle([&] { wait_for_samples(run_.iteration()); });
}

void RolloutsByRule::wait_for_samples(int64_t rollout) {
  progress_.while_sampling();
  const Done now = done_.load();
  if (now.of > 0) progress_.report(rollout, "sampling", now.done, now.of);
}

}  // namespace lockstep::recipes
