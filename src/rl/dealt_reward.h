// A Reward of many ranks: each sample is graded once, by one rank, and all get its score.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "parallel/group.h"
#include "rl/reward.h"

namespace lockstep::rl {

// Ticket t belongs to rank t % size, whose own Reward grades it. submit, poll and cancel are called on all ranks alike
// and in the same order; poll is collective and returns the same everywhere, so that a verdict that depends on when it
// was asked for (a service, a time-out) is one verdict. It throws Cancelled on all ranks once one was asked to stop,
// and what a rank's own Reward throws (parallel::agree).
class DealtReward final : public Reward {
 public:
  // `interrupted`: whether this rank or another was asked to stop; asked several times a second. All outlive it.
  DealtReward(Reward& own, parallel::Group& group, std::function<bool()> interrupted)
      : own_(own), group_(group), interrupted_(std::move(interrupted)) {}

  bool grades_groups() const override { return own_.grades_groups(); }
  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override;
  void cancel(Ticket ticket) override;

 private:
  std::vector<Graded> meet(Deadline deadline);

  Reward& own_;
  parallel::Group& group_;
  const std::function<bool()> interrupted_;
  Ticket next_ = 0;
  std::map<Ticket, Ticket> own_tickets_;  // in flight: of own_, and which ticket of all ranks each is
  std::set<Ticket> open_;                 // of all ranks
  std::exception_ptr failed_;             // in submit
};

}  // namespace lockstep::rl
