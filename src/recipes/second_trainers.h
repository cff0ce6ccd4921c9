// The trainers that a run of reinforcement learning has beside the actor's: PPO's critic. The loop, the memory plan, a
// dry run, checkpoints and metrics go by this list, so that another one is a file like critic.cpp and a line here.
#pragma once

#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "recipes/memory_plan.h"
#include "recipes/training_run.h"
#include "rl/second_trainer.h"

namespace lockstep::recipes {

class SecondTrainer : public rl::SecondTrainer {
 public:
  virtual void set_steps(int64_t steps) = 0;  // optimizer steps of the whole run, before the first; ConfigError
  // After every iteration, for what is written beside the run's checkpoints. ResourceError: it cannot be written.
  virtual void save_if_due(int64_t iteration, bool last) = 0;
};

struct SecondTrainerKind {
  const char* name;  // as a policy of checkpoints (TrainingRun::keep_trainer)
  bool (*is_asked_for)(const RlOptions& options);
  // The layout of the adapter that a fresh run begins with. Reads no weights.
  std::shared_ptr<const lora::AdapterLayout> (*layout)(const RlOptions& options, const Base& base);
  // All references outlive it. Restores what the run's checkpoint has of it, and is kept in checkpoints from now on.
  std::unique_ptr<SecondTrainer> (*make)(const RlOptions& options, const Base& base, TrainingRun& run, Stream& stream,
                                         const Control& control);
  int64_t (*rollouts_alone)(const RlOptions& options);  // the first ones, of which the actor learns nothing
  void (*add_settings)(OrderedJson& settings, const RlOptions& options);  // recipes/run_settings.h
  void (*describe)(const RlOptions& options, std::ostream& out);          // for a dry run
};

// Those that the options ask for.
std::vector<const SecondTrainerKind*> second_trainers(const RlOptions& options);

// Rollouts at the beginning that do not train the actor; at most `rollouts`.
int64_t rollouts_without_actor(const RlOptions& options, int64_t rollouts);

}  // namespace lockstep::recipes
