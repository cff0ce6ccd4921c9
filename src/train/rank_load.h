// How evenly the ranks of a run share its steps: all wait for the one that has the most tokens.
#pragma once

#include <optional>
#include <span>

#include "train/trainer.h"

namespace lockstep::train {

class RankLoad {
 public:
  // A step of these datums, as train_step deals them to so many ranks.
  void add(const Trainer& trainer, std::span<const Datum> datums, int64_t datums_per_term, int ranks);
  // Tokens of the longest rank over those of the mean one, summed over the steps: 1 if all are done together, the
  // number of ranks if one has everything. None: one rank, or no step.
  std::optional<double> imbalance() const;

 private:
  double longest_ = 0, mean_ = 0;
};

}  // namespace lockstep::train
