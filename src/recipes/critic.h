// The critic of a PPO run: where it begins, its trainer and schedule, and what is kept of it.
#pragma once

#include <memory>

#include "recipes/training_run.h"
#include "rl/train.h"

namespace lockstep::recipes {

inline constexpr const char* kCritic = "critic";  // as a policy of checkpoints

// The layout of the adapter that the critic of a fresh run begins with: that of CriticOptions::load, else of the
// actor's, with a value head. Reads no weights. nullptr without PPO. ConfigError: a rank is given beside an adapter,
// which has its own; FormatError, ShapeError: an adapter of another base.
std::shared_ptr<const lora::AdapterLayout> critic_layout(const RlOptions& options, const Base& base);

// `adapter` and a fresh value head: its weight normal with deviation 0.02, its bias 0.
lora::AdapterVersion with_value_head(const lora::AdapterVersion& adapter, const Base& base, uint64_t seed);

class Critic {
 public:
  // The checkpoint's critic where the run was resumed and has one, else as critic_layout says; it is kept in the run's
  // checkpoints from now on. Prints what it is. All references outlive it. What critic_layout and load_adapter throw.
  Critic(const RlOptions& options, const Base& base, TrainingRun& run, Stream& stream, const Control& control);

  train::Trainer& trainer() { return *trainer_; }
  // Of `steps` optimizer steps of the whole run. ConfigError if the warm-up is longer.
  train::Schedule schedule(int64_t steps) const;

  // CriticOptions::save: writes DIR/iter_NNNNNNN, a PEFT directory, at the run's interval or where it is the last
  // iteration. ResourceError: it cannot be written.
  void save_if_due(int64_t iteration, bool last);

 private:
  const RlOptions& options_;
  const Base& base_;
  const TrainingRun& run_;
  const bool is_writer_;  // one rank is
  std::unique_ptr<train::Trainer> trainer_;
};

}  // namespace lockstep::recipes
