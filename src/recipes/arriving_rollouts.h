// Rollouts that are made of groups as they arrive (recipes/async_options.h): one thread samples without a pause, and a
// sample that is under way when a version of the adapter is published goes on with it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "recipes/options.h"
#include "recipes/prompts.h"
#include "recipes/rollout_sampling.h"
#include "recipes/rollout_source.h"
#include "recipes/run_progress.h"
#include "rl/groups_in_flight.h"

namespace lockstep::recipes {

class ArrivingRollouts final : public RolloutSource {
 public:
  // `sampling` has the parameters and the order of the prompts. What a resumed run had finished or begun is taken over
  // from its checkpoint: finished groups as they are, the others from their beginning. All references outlive it.
  ArrivingRollouts(const RlOptions& options, const PromptSet& prompts, RolloutSampling& sampling,
                   const rl::RlParts& parts, TrainingRun& run, RunProgress& progress);
  ~ArrivingRollouts() override;  // stops what is being sampled and forgets it

  // Waits for a rollout's groups, the first that finished. What sampling them threw; DataError with the counts where
  // max_filter_rounds rollouts' worth of groups were judged for this one and too few passed.
  SampledRollout next(int64_t rollout) override;
  void rest() override;
  int64_t finish(const SampledRollout& sampled) override;
  bool overlaps() const override { return true; }
  std::set<int64_t> drawn_by() const override;
  OrderedJson metrics() const override;

 private:
  struct Submission {
    uint32_t number = 0;
    int64_t prompt = 0;
  };

  void restore();
  KeptPart kept() const;
  rl::GroupRequest request(const Submission& submission) const;
  // Of the sampling thread.
  void run();
  void sample();
  std::vector<Submission> due();  // to be begun now; the lock is held
  void accept(rl::FinishedGroup group);
  // Of the run's thread; the lock is held.
  void drop_stale();
  void require_passing() const;
  void wait(std::unique_lock<std::mutex>& lock, int64_t rollout, const std::function<bool()>& done);

  const RlOptions& options_;
  const PromptSet& prompts_;
  RolloutSampling& sampling_;
  const rl::RlParts parts_;
  TrainingRun& run_;
  RunProgress& progress_;
  const int64_t batch_, concurrent_;  // groups

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  uint32_t next_number_ = 0;
  int64_t position_ = 0;             // in the data: of the next group
  std::deque<Submission> again_;     // to be begun before others
  std::vector<Submission> running_;  // under way
  std::deque<rl::FinishedGroup> ready_;
  std::vector<rl::FinishedGroup> taken_;  // of the rollout that is trained on
  int64_t trained_ = 0;                   // iterations
  int64_t rejected_ = 0;                  // groups that did not pass a gate, since the last rollout
  rl::UnknownRewards unknown_;            // of these groups
  int64_t stale_ = 0;                     // groups that were too old, in this process
  std::exception_ptr failure_;
  std::atomic<bool> stopping_ = false;
  bool pausing_ = false, paused_ = false;
  int64_t followed_ = 0;  // samples of the last rollout that several versions drew
  double wait_ms_ = 0;    // for the last rollout
  std::thread thread_;    // from the first next() on
};

}  // namespace lockstep::recipes
