// The versions of the actor that later rollouts will be sampled with, and those that drew samples which are kept for
// these rollouts. The run's checkpoints contain them, so that a resumed run samples with the same ones, and compares
// the samples' log-probs with those of the versions that drew them.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "recipes/rollouts_ahead.h"
#include "recipes/training_run.h"
#include "versions/store.h"

namespace lockstep::recipes {

class SampledVersions {
 public:
  // Publishes the run's actor, and before it the earlier versions that a resumed run still needs. `held`: how many
  // versions the store holds at least, so that the versions of samples are among them. The references outlive it.
  // DataError for a checkpoint that lacks a version that is still sampled with.
  SampledVersions(const StalenessRule& rule, int64_t held, versions::Store& store, TrainingRun& run);

  // Checkpoints hold what `drawn_by` says, too: the versions that drew the samples which they keep.
  void keep_also(std::function<std::set<int64_t>()> drawn_by) { drawn_by_ = std::move(drawn_by); }

  // `policy` is the version after so many iterations of training.
  void trained(int64_t iterations, const lora::PolicyId& policy);
  bool has(int64_t rollout) const;  // the version that this rollout samples with
  versions::Pin pin(int64_t rollout) const;
  const lora::PolicyId& newest() const { return newest_; }
  versions::Pin pin_newest() const { return store_.pin(lora::kActor, newest_.version); }
  versions::Version find(int64_t version) const;  // null: it is not held any more

 private:
  int64_t version_of(int64_t rollout) const;
  void restore();
  std::set<int64_t> of_rollouts() const;                   // that are still to come, from the run's iteration on
  std::vector<lora::AdapterVersion> older_needed() const;  // of checkpoints: but for the newest; ascending

  const StalenessRule rule_;
  versions::Store& store_;
  TrainingRun& run_;
  std::map<int64_t, int64_t> version_after_;  // so many iterations; of those that are still needed
  std::function<std::set<int64_t>()> drawn_by_;
  lora::PolicyId newest_;
};

}  // namespace lockstep::recipes
