// A run at the end of an iteration, as values that no later step changes: what a checkpoint is written from, while the
// run goes on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "core/host_mirror.h"
#include "recipes/base.h"
#include "train/trainer.h"

namespace lockstep::recipes {

// State of a recipe, or of a trainer beside the run's, that lies in checkpoints under a name.
struct KeptPart {
  Json json;
  NamedTensors tensors = {};                     // host memory
  std::shared_ptr<const void> memory = nullptr;  // that the tensors point into
};

// The host memory that snapshots copy into, kept from one to the next.
class SnapshotMemory {
 public:
  // Of the policy or trainer of this name: what it had before, unless a snapshot still has it.
  struct Moments {
    HostMirror first, second;
  };
  std::shared_ptr<HostMirror> weights(const std::string& name) { return free_or_new(weights_[name]); }
  std::shared_ptr<Moments> moments(const std::string& name) { return free_or_new(moments_[name]); }

 private:
  template <class T>
  static std::shared_ptr<T> free_or_new(std::shared_ptr<T>& kept) {
    if (kept.use_count() != 1) kept = std::make_shared<T>();
    return kept;
  }
  std::map<std::string, std::shared_ptr<HostMirror>> weights_;
  std::map<std::string, std::shared_ptr<Moments>> moments_;
};

class TrainingSnapshot {
 public:
  explicit TrainingSnapshot(int64_t iteration) { checkpoint_.state.iteration = iteration; }

  // Copies weights to host memory on the base's stream. They are brought into the order of files by save().
  void add_policy(const std::string& name, const lora::AdapterVersion& adapter, int64_t version, const Base& base,
                  SnapshotMemory& memory);
  void set_moments(KeptPart moments);
  void set_counters(Json counters) { checkpoint_.state.counters = std::move(counters); }
  void set_arguments(Json arguments) { checkpoint_.state.arguments = std::move(arguments); }
  void add_part(const std::string& name, KeptPart part);

  // Writes the checkpoint, as checkpoint::save_checkpoint. Any thread, once; the snapshot is empty afterwards.
  void save(const fs::Path& directory);
  // The same for the one policy alone: a PEFT directory with our metadata. ResourceError.
  void save_policy(const fs::Path& directory);
  int64_t iteration() const { return checkpoint_.state.iteration; }

 private:
  checkpoint::Checkpoint checkpoint_;
  std::vector<std::shared_ptr<const void>> memory_;  // that the tensors of checkpoint_ are read from
};

// The trainer's moments as the tensors of a part, copied into the memory of this name.
KeptPart moments_part(const train::Trainer& trainer, const std::string& name, SnapshotMemory& memory);

}  // namespace lockstep::recipes
