// A run at the end of an iteration, as values that no later step changes: what a checkpoint is written from, while the
// run goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "recipes/base.h"
#include "train/trainer.h"

namespace lockstep::recipes {

// State of a recipe, or of a trainer beside the run's, that lies in checkpoints under a name.
struct KeptPart {
  Json json;
  NamedTensors tensors = {};                     // host memory
  std::shared_ptr<const void> memory = nullptr;  // that the tensors point into
};

class TrainingSnapshot {
 public:
  explicit TrainingSnapshot(int64_t iteration) { checkpoint_.state.iteration = iteration; }

  // Copies weights to host memory on the base's stream. They are brought into the order of files by save().
  void add_policy(const std::string& name, const lora::AdapterVersion& adapter, int64_t version, const Base& base);
  void set_moments(train::Trainer::State moments);
  void set_counters(Json counters) { checkpoint_.state.counters = std::move(counters); }
  void set_arguments(Json arguments) { checkpoint_.state.arguments = std::move(arguments); }
  void add_part(const std::string& name, KeptPart part);

  // Writes the checkpoint, as checkpoint::save_checkpoint. Any thread, once; the snapshot is empty afterwards.
  void save(const fs::Path& directory);
  // The same for the one policy alone: a PEFT directory with our metadata. ResourceError.
  void save_policy(const fs::Path& directory);
  int64_t iteration() const { return checkpoint_.state.iteration; }

 private:
  std::vector<lora::ExportedTensors> order_weights();
  struct PolicyWeights {
    std::shared_ptr<const lora::AdapterLayout> layout;
    Buffer flat;
  };
  checkpoint::Checkpoint checkpoint_;
  std::vector<PolicyWeights> weights_;  // of checkpoint_.policies
  std::vector<std::shared_ptr<const void>> memory_;
};

// Moments as the tensors of a part.
KeptPart moments_part(train::Trainer::State moments);

}  // namespace lockstep::recipes
