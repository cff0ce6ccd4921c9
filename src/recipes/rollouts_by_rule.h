// Rollouts whose version of the adapter is a function of their number (recipes/staleness.h): sampled in turn with
// training, several together, or ahead of training on a thread.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "recipes/rollout_sampling.h"
#include "recipes/rollout_source.h"
#include "recipes/rollouts_ahead.h"
#include "recipes/rollouts_together.h"
#include "recipes/run_progress.h"
#include "recipes/sampled_versions.h"

namespace lockstep::recipes {

class RolloutsByRule final : public RolloutSource {
 public:
  // For a run of `total` rollouts, beginning with the one after its checkpoint. `together`: sampled_together().
  // `chooses_by_time`: nothing is sampled beside the first training, because kernels are chosen by timing them. All
  // references outlive it.
  RolloutsByRule(const StalenessRule& rule, bool together, RolloutSampling& sampling, rollout::Sampler& sampler,
                 const SampledVersions& versions, const TrainingRun& run, RunProgress& progress, int64_t total,
                 bool chooses_by_time);

  SampledRollout next(int64_t rollout) override;
  void rest() override;
  void take_graded() override;
  int64_t finish(const SampledRollout& sampled) override;
  bool overlaps() const override { return ahead_.has_value(); }
  OrderedJson metrics() const override { return sampling_.order().metrics(); }

 private:
  struct Done {
    int32_t done = 0, of = 0;
  };
  template <class Rollouts>
  void begin(Rollouts& rollouts, int64_t last);  // as many as have their version, up to this one
  void wait_for_samples(int64_t rollout);

  const StalenessRule rule_;
  RolloutSampling& sampling_;
  rollout::Sampler& sampler_;
  const SampledVersions& versions_;
  const TrainingRun& run_;
  RunProgress& progress_;
  const int64_t total_;
  const int64_t alone_;  // the rollout that nothing is sampled beside; -1: none
  std::optional<RolloutsTogether> together_;
  std::atomic<Done> done_ = Done();     // of what is being sampled ahead
  std::optional<RolloutsAhead> ahead_;  // last: its thread uses the others
};

// DebugOptions::rollout_only: all rollouts of a run are sampled with the version that it begins with.
class RolloutsOfOneVersion final : public RolloutSource {
 public:
  // All references outlive it.
  RolloutsOfOneVersion(RolloutSampling& sampling, const SampledVersions& versions, const TrainingRun& run,
                       RunProgress& progress)
      : sampling_(sampling), versions_(versions), progress_(progress), rows_begin_(run.data_position()) {}

  SampledRollout next(int64_t rollout) override;
  int64_t finish(const SampledRollout& sampled) override { return sampling_.order().finish(sampled.gates); }
  OrderedJson metrics() const override { return sampling_.order().metrics(); }

 private:
  RolloutSampling& sampling_;
  const SampledVersions& versions_;
  RunProgress& progress_;
  int64_t rows_begin_;
};

}  // namespace lockstep::recipes
