// Submissions whose scores come from other threads.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "rl/reward.h"

namespace lockstep::rl {

// Any thread may call any function.
class RewardInbox {
 public:
  Reward::Ticket open(size_t samples);
  // Nothing if the submission was cancelled.
  void deliver(Reward::Ticket ticket, size_t sample, Score score);
  void cancel(Reward::Ticket ticket);
  bool holds(Reward::Ticket ticket) const;                      // neither graded nor cancelled
  std::vector<Reward::Graded> poll(Reward::Deadline deadline);  // as Reward::poll

 private:
  struct Open {
    std::vector<Score> scores;
    size_t missing = 0;
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Reward::Ticket, Open> open_;
  std::vector<Reward::Graded> graded_;
  Reward::Ticket next_ = 0;
};

}  // namespace lockstep::rl
