#include "rl/reward_inbox.h"

#include <utility>

namespace lockstep::rl {

Reward::Ticket RewardInbox::open(size_t samples) {
  const std::lock_guard lock(mutex_);
  open_[next_] = {.scores = std::vector<Score>(samples), .missing = samples};
  return next_++;
}

void RewardInbox::deliver(Reward::Ticket ticket, size_t sample, Score score) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(ticket);
  if (found == open_.end()) return;
  found->second.scores.at(sample) = std::move(score);
  if (--found->second.missing > 0) return;
  graded_.push_back({.ticket = ticket, .scores = std::move(found->second.scores)});
  open_.erase(found);
  changed_.notify_all();
}

void RewardInbox::cancel(Reward::Ticket ticket) {
  const std::lock_guard lock(mutex_);
  open_.erase(ticket);
  std::erase_if(graded_, [ticket](const Reward::Graded& graded) { return graded.ticket == ticket; });
  changed_.notify_all();
}

bool RewardInbox::holds(Reward::Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return open_.contains(ticket);
}

std::vector<Reward::Graded> RewardInbox::poll(Reward::Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !graded_.empty() || open_.empty(); });
  return std::exchange(graded_, {});
}

}  // namespace lockstep::rl
