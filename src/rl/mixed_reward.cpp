#include "rl/mixed_reward.h"

#include <algorithm>
#include <utility>

namespace lockstep::rl {

bool MixedReward::grades_groups() const {
  return std::ranges::any_of(terms_, [](const RewardTerm& term) { return term.reward->grades_groups(); });
}

Reward::Ticket MixedReward::submit(std::vector<RewardSample> samples) {
  const Ticket ticket = next_++;
  Open& open = open_[ticket];
  open = {.num_samples = samples.size(), .missing = terms_.size(), .scores = {}, .tickets = {}};
  open.scores.resize(terms_.size());
  for (size_t k = 0; k < terms_.size(); ++k) {
    open.tickets.push_back(terms_[k].reward->submit(samples));
    whose_[{k, open.tickets.back()}] = ticket;
  }
  return ticket;
}

std::vector<Reward::Graded> MixedReward::poll(Deadline deadline) {
  constexpr std::chrono::milliseconds kTurn{2};
  for (;;) {
    bool any = false;
    for (size_t k = 0; k < terms_.size(); ++k) any = take(k, terms_[k].reward->poll({})) || any;
    const auto now = std::chrono::steady_clock::now();
    if (!graded_.empty() || open_.empty() || now >= deadline) return std::exchange(graded_, {});
    if (any) continue;
    // The first term that has something to wait for; the others are polled in between.
    for (size_t k = 0; k < terms_.size(); ++k) {
      const bool waits = std::ranges::any_of(whose_, [k](const auto& entry) { return entry.first.first == k; });
      if (!waits) continue;
      take(k, terms_[k].reward->poll(std::min(deadline, now + kTurn)));
      break;
    }
  }
}

bool MixedReward::take(size_t term, std::vector<Graded> graded) {
  for (Graded& of_term : graded) {
    const auto found = whose_.find({term, of_term.ticket});
    if (found == whose_.end()) continue;
    const Ticket ticket = found->second;
    whose_.erase(found);
    Open& open = open_.at(ticket);
    open.scores[term] = std::move(of_term.scores);
    if (--open.missing > 0) continue;
    graded_.push_back({.ticket = ticket, .scores = sum(open)});
    open_.erase(ticket);
  }
  return !graded.empty();
}

std::vector<Score> MixedReward::sum(const Open& open) const {
  std::vector<Score> sums;
  for (size_t i = 0; i < open.num_samples; ++i) {
    double value = 0;
    Score all;
    for (size_t k = 0; k < terms_.size(); ++k) {
      const Score& score = open.scores[k][i];
      all.parts.push_back({.name = terms_[k].name, .value = score.value});
      for (const ScorePart& part : score.parts)
        all.parts.push_back({.name = terms_[k].name + "/" + part.name, .value = part.value});
      if (score.value)
        value += terms_[k].weight * static_cast<double>(*score.value);
      else if (all.failure.empty())
        all.failure = terms_[k].name + ": " + score.failure;
    }
    if (all.failure.empty()) {
      const Score total = Score::of(value);
      all.value = total.value;
      all.failure = total.failure;
    }
    sums.push_back(std::move(all));
  }
  return sums;
}

void MixedReward::cancel(Ticket ticket) {
  std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
  const auto found = open_.find(ticket);
  if (found == open_.end()) return;
  for (size_t k = 0; k < terms_.size(); ++k) {
    terms_[k].reward->cancel(found->second.tickets[k]);
    whose_.erase({k, found->second.tickets[k]});
  }
  open_.erase(found);
}

}  // namespace lockstep::rl
