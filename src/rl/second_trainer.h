// A trainer beside the actor's: its own adapter on the same base, its own optimizer and loss. PPO's critic is one
// (recipes/critic.h).
//
// In a step it first gives the actor what the actor reads of it, then takes all its optimizer steps of the rollout; the
// actor takes its own afterwards. So no batch of it changes what another batch of the actor learns.
#pragma once

#include <span>
#include <string>

#include "core/json.h"
#include "rl/parts.h"
#include "train/reduction.h"

namespace lockstep::rl {

// What it says of the training on a rollout.
struct SecondTrainerReport {
  std::string name;  // of the trainer
  OrderedJson metrics = OrderedJson::object();
  std::string text;  // for the terminal's line; empty: it learned nothing
};

class SecondTrainer {
 public:
  virtual ~SecondTrainer() = default;

  // Sets in the datums what the actor's advantages or loss read, by this trainer's weights before the rollout's first
  // step. `between` may throw. With a group it is collective, and each rank computes a share (train/dealt_rows.h).
  virtual void prepare(std::span<train::Datum> datums, const train::Progress& between, parallel::Group* group) = 0;

  // Its optimizer steps, of `batch_size` samples each and in order; batches that learn nothing are left out. Until the
  // first step is about to change it an interrupt is noticed; afterwards all steps are taken. The samples are reported
  // as done, 0 to all. Where it returns the advantages are set.
  virtual SecondTrainerReport train(std::span<const train::Datum> datums, int64_t batch_size,
                                    const train::Reduction& reduction, const Watch& watch) = 0;

  virtual void release_memory() = 0;  // of activations
};

}  // namespace lockstep::rl
