// The versions of the actor that later rollouts will be sampled with. The run's checkpoints contain them, so that a
// resumed run samples with the same ones.
#pragma once

#include <map>
#include <string>

#include "recipes/rollouts_ahead.h"
#include "recipes/training_run.h"
#include "versions/store.h"

namespace lockstep::recipes {

class SampledVersions {
 public:
  // Publishes the run's actor, and before it the earlier versions that a resumed run still samples with. The references
  // outlive it. DataError for a checkpoint that lacks one of them.
  SampledVersions(const StalenessRule& rule, versions::Store& store, TrainingRun& run);

  // `policy` is the version after so many iterations of training.
  void trained(int64_t iterations, const lora::PolicyId& policy);
  bool has(int64_t rollout) const;  // the version that this rollout samples with
  versions::Pin pin(int64_t rollout) const;
  const lora::PolicyId& newest() const { return newest_; }
  versions::Pin pin_newest() const { return store_.pin(lora::kActor, newest_.version); }
  versions::Version find(int64_t version) const;  // null: it is not held any more

 private:
  int64_t version_of(int64_t rollout) const;
  // Slots of the checkpoint: the versions, but for the newest, that rollouts from `iteration` on need; ascending.
  std::vector<int64_t> older_needed(int64_t iteration) const;
  void keep(size_t slots);

  const StalenessRule rule_;
  versions::Store& store_;
  TrainingRun& run_;
  std::map<int64_t, int64_t> version_after_;  // so many iterations; of those that are still needed
  lora::PolicyId newest_;
  size_t kept_slots_ = 0;
};

}  // namespace lockstep::recipes
