// Resume state and the layout of a save directory:
//   SAVE/latest_checkpointed_iteration.txt                   the number of the newest complete checkpoint, written last
//   SAVE/best_checkpointed_iteration.txt                     the number of the best one, if the run looks for it
//   SAVE/iter_0000100/lora_adapter/{adapter_config.json, adapter_model.safetensors}     of the policy `actor`
//   SAVE/iter_0000100/vime_lora_metadata.json               the same file lies in lora_adapter/
//   SAVE/iter_0000100/policies/NAME/                        as lora_adapter/, of every other policy
//   SAVE/iter_0000100/parts/NAME.{json,safetensors}         what the recipe keeps beside these, by name
//   SAVE/iter_0000100/train_state.{json,safetensors}         optimizer moments, counters, data position, run arguments
// train_state.json holds the SHA-256 of every other file of the iteration and of itself, checked on loading, and so
// says which policies there are. Only the markers have none: they change when nothing else does, and name what is
// checked.
// An iteration directory appears whole (written aside, fsynced, renamed) or not at all.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/iterations.h"
#include "checkpoint/peft_directory.h"
#include "core/json.h"
#include "lora/policy.h"

namespace lockstep::checkpoint {

// State with a name of its own: parts/NAME.json, and parts/NAME.safetensors if it has tensors.
struct StatePart {
  Json json;
  NamedTensors tensors = {};
};

// The part of samples that were asked for and not yet trained on.
inline constexpr const char* kPendingSamplesPart = "pending_samples";

struct TrainState {
  int64_t iteration = 0;  // completed iterations
  Json counters;          // whatever the recipe needs to go on: optimizer step, version, data position; none negative
  Json arguments = nullptr;                     // of the command, resolved; null: the run was not started by one
  NamedTensors tensors;                         // optimizer moments
  std::map<std::string, StatePart> parts = {};  // by name, which is made as a policy's
};

// The adapter of one policy.
struct SavedPolicy {
  std::string name = lora::kActor;  // letters, digits, '.', '_' and '-'; a directory is called so
  lora::LoraConfig config;
  std::vector<std::string> target_modules;  // as adapter_config.json names them
  std::string base_model_name;
  NamedTensors adapter;  // PEFT names
  ReadTensor read = {};  // values of `adapter`, as of put_safetensors; none: they lie in it
  AdapterMetadata metadata;
};

struct Checkpoint {
  std::vector<SavedPolicy> policies;  // the actor and any others
  TrainState state;
};

// Writes the iteration, then the marker. Throws ResourceError, or ConfigError without an actor and for names that
// cannot be a file's or are there twice; an older checkpoint stays valid then.
void save_checkpoint(const fs::Path& save, const Checkpoint& checkpoint);

// A file of an iteration beside what train_state.json says of it.
struct FileCheck {
  //   unknown   an older build saved it, which hashed fewer files
  //   surplus   no file of the checkpoint, as far as it says
  enum class State { whole, missing, changed, unknown, surplus };
  std::string name;  // in the iteration's directory
  State state = State::whole;
  std::string got = {}, wanted = {};  // SHA-256
};
// Every file that an iteration's directory has or should have. FormatError, DataError: train_state.json cannot be read.
std::vector<FileCheck> check_files(const fs::Path& iteration);

struct LoadedPolicy {
  PeftDirectory directory;
  AdapterWeights weights;
};

class LoadedCheckpoint {
 public:
  LoadedCheckpoint(const fs::Path& save, int64_t iteration);  // FormatError naming file and field
  const LoadedPolicy& policy(const std::string& name) const;  // FormatError naming those there are
  std::vector<std::string> policy_names() const;              // sorted
  const TrainState& state() const { return state_; }
  // Files that nothing vouches for, because an older build saved the checkpoint, which knew fewer hashes.
  const std::vector<std::string>& unchecked() const { return unchecked_; }

 private:
  fs::Path directory_;
  std::vector<std::string> unchecked_;
  std::map<std::string, LoadedPolicy> policies_;
  std::optional<SafetensorsFile> tensors_;
  std::vector<SafetensorsFile> part_tensors_;
  TrainState state_;
};

}  // namespace lockstep::checkpoint
