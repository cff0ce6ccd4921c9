// Rollouts in flight: asked for, and not collected yet. What else is done meanwhile, training, publishing and other
// rollouts included, changes none of their samples.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rl/reward_queue.h"
#include "rl/rollout.h"

namespace lockstep::rl {

// Each sample is handed to the reward when it, or its group, has finished. Whoever drives sampler and reward hands over
// what comes of them.
class PendingRollout {
 public:
  // Asks the sampler for the samples that RlParts::graded does not have. What Sampler::submit throws; nothing is in
  // flight then. `parts` outlives it.
  PendingRollout(RlParts& parts, RolloutRequest request);
  ~PendingRollout();  // cancels what is in flight
  PendingRollout(const PendingRollout&) = delete;
  PendingRollout& operator=(const PendingRollout&) = delete;

  bool take(const rollout::Event& event);  // false: it is of others
  bool take(Reward::Graded& graded);       // as well
  void stop_if_failed() const;             // as rollout::GroupCollector

  bool failed() const;
  bool drawn() const;             // nothing is in flight in the sampler
  bool grading() const;           // something is in flight in the reward
  int64_t samples_drawn() const;  // but for greedy ones
  int64_t num_samples() const { return static_cast<int64_t>(trajectories_.size()); }

  // When all is drawn and graded. DataError for an unknown reward with RewardFailure::stop.
  Rollout finish() &&;

 private:
  // A sample of the rollout, as RlParts::graded had it.
  struct Found {
    int64_t prompt = 0, index = 0;
    GradedSample graded;
  };
  void plan();
  void submit();
  void cancel();
  std::vector<rollout::GroupCollector*> collectors();
  size_t place(const rollout::Sample& sample);
  void judge(const rollout::Sample& sample);
  void judge_greedy(const rollout::Sample& sample);
  void set_baselines(Rollout& rollout, std::span<const Score> scores) const;

  RlParts& parts_;
  const RolloutRequest request_;
  std::vector<Found> found_;
  std::vector<int64_t> whole_;                       // prompts all of whose samples are drawn
  std::vector<std::pair<int64_t, int64_t>> single_;  // prompt and index of the others that are drawn
  std::optional<rollout::GroupCollector> of_whole_, of_single_, greedy_;
  std::vector<Trajectory> trajectories_;
  std::vector<rollout::Sample> kept_;  // samples on their way to RlParts::graded
  RewardQueue queue_, greedy_queue_;
};

std::unique_ptr<PendingRollout> rl_submit(RlParts& parts, RolloutRequest request);

// Waits for the rollout, while those `beside` it go on: their samples are drawn, by the same steps of the engine, and
// graded. All that is in flight in the reward is of these rollouts; events of the sampler's other tickets are put back.
// Cancelled when interrupted; DataError for an unknown reward with RewardFailure::stop; what the sampler and the reward
// throw. This rollout is gone then, the others stay.
Rollout rl_collect(RlParts& parts, std::unique_ptr<PendingRollout> pending,
                   std::span<const std::unique_ptr<PendingRollout>> beside = {}, const Watch& watch = {});

// Takes what has been graded, without waiting.
void rl_take_graded(RlParts& parts, std::span<const std::unique_ptr<PendingRollout>> pending);

// Waits until none of their samples is being graded, without sampling, so that others may use the reward. Cancelled
// when interrupted.
void rl_finish_grading(RlParts& parts, std::span<const std::unique_ptr<PendingRollout>> pending, const Watch& watch);

}  // namespace lockstep::rl
