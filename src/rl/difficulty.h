// Difficulty pools: which prompts a rollout reads, by what their last samples earned.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/json.h"
#include "data/order.h"

namespace lockstep::rl {

struct DifficultyOptions {
  std::optional<double> easy, hard;             // thresholds of a mean reward
  double easy_fraction = 0, hard_fraction = 0;  // of the prompts of a round of sampling, at most

  bool is_on() const { return easy || hard; }
};

// A prompt is easy if the mean reward of its last group was >= easy, hard if it was <= hard, normal otherwise and as
// long as it was never sampled. A round of n prompts walks the rows of the data order: a normal row is taken, an easy
// one while there are fewer than floor(easy_fraction n) easy ones, a hard one likewise; the others are passed by. After
// as many rows as there are prompts, what is missing is filled with the first that were passed by (and after those, as
// the order goes on). So a rollout is a function of the data position and of this history, which checkpoints keep.
// Source: prime-rl's buffer (easy_threshold, hard_threshold, easy_fraction, hard_fraction), which draws at random.
class DifficultyPools {
 public:
  DifficultyPools(const DifficultyOptions& options, int64_t num_rows) : options_(options), num_rows_(num_rows) {}

  struct Pick {
    int64_t row = 0;
    int64_t walked = 0;  // rows read from the position on, when this one was taken
  };
  // `count` > 0 picks of a round that begins at `position`; `walked` never falls from one to the next.
  std::vector<Pick> pick(data::DataOrder& order, int64_t position, int64_t count) const;

  void record(int64_t row, double mean_reward) { history_[row] = mean_reward; }

  struct Sizes {
    int64_t easy = 0, normal = 0, hard = 0;
  };
  Sizes sizes() const;

  OrderedJson json() const;  // [[row, mean], ...]
  // FormatError: not what json() wrote.
  void restore(const Json& history);

 private:
  enum class Pool { easy, normal, hard };
  Pool pool_of(int64_t row) const;

  DifficultyOptions options_;
  int64_t num_rows_;
  std::map<int64_t, double> history_;
};

}  // namespace lockstep::rl
