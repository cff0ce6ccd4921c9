// Samples of a rollout on their way through a Reward: each is handed over when it has finished, or its group has.
#pragma once

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rl/reward.h"

namespace lockstep::rl {

// Reward::poll where something is in flight. ResourceError: the reward has lost it.
std::vector<Reward::Graded> wait_for_graded(Reward& reward, Reward::Deadline deadline);

// Whoever polls the reward hands over what it has graded. What has not been graded is cancelled with the queue.
class RewardQueue {
 public:
  // Samples 0 .. num_samples-1; sample i is one of `group_size` samples of prompt i / group_size.
  RewardQueue(Reward& reward, size_t num_samples, size_t group_size);
  ~RewardQueue();
  RewardQueue(const RewardQueue&) = delete;
  RewardQueue& operator=(const RewardQueue&) = delete;

  void add(size_t position, RewardSample sample);
  bool take(Reward::Graded& graded);  // false: it is of other samples
  bool idle() const { return in_flight_.empty(); }
  std::vector<Score> scores() && { return std::move(scores_); }  // in the order of positions; unknown: not graded
  // Calls this with each sample as soon as it is graded.
  using OnGraded = std::function<void(size_t position, const Score& score)>;
  void on_graded(OnGraded on_graded) { on_graded_ = std::move(on_graded); }

 private:
  Reward& reward_;
  const size_t group_size_;
  std::vector<RewardSample> waiting_;  // for the others of their group
  std::vector<size_t> missing_;        // of each group, samples that were not added yet
  std::unordered_map<Reward::Ticket, std::vector<size_t>> in_flight_;
  std::vector<Score> scores_;
  OnGraded on_graded_;
};

// Grades samples that are all there, in their order: those of prompt i are samples[i * group_size] and on. The reward
// has no other caller meanwhile. `between(graded)` is called again and again and may throw.
using Between = std::function<void(size_t graded)>;
std::vector<Score> grade_all(Reward& reward, std::vector<RewardSample> samples, size_t group_size,
                             const Between& between = {});

}  // namespace lockstep::rl
