// Several rewards as one weighted sum.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rl/reward.h"

namespace lockstep::rl {

struct RewardTerm {
  std::string name;  // of its part
  double weight = 1;
  std::unique_ptr<Reward> reward;
};

// sum_k weight_k R_k. The parts of a score are those of the terms: each term's value under its name, and its own parts
// as NAME/PART. The sum is unknown as soon as one term is (TRL leaves an unknown term out, as if it were 0).
class MixedReward : public Reward {
 public:
  explicit MixedReward(std::vector<RewardTerm> terms) : terms_(std::move(terms)) {}

  bool grades_groups() const override;
  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override;
  void cancel(Ticket ticket) override;

 private:
  struct Open {
    size_t num_samples = 0, missing = 0;     // terms
    std::vector<std::vector<Score>> scores;  // of each term
    std::vector<Ticket> tickets;             // of each term
  };
  bool take(size_t term, std::vector<Graded> graded);
  std::vector<Score> sum(const Open& open) const;

  std::vector<RewardTerm> terms_;
  std::map<Ticket, Open> open_;
  std::map<std::pair<size_t, Ticket>, Ticket> whose_;  // term and its ticket -> ours
  std::vector<Graded> graded_;
  Ticket next_ = 0;
};

}  // namespace lockstep::rl
