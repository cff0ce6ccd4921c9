// Where an adapter comes from and where it goes: fresh, a PEFT directory, or a checkpoint of ours.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "recipes/base.h"
#include "train/trainer.h"

namespace lockstep::recipes {

// An adapter directory that fits a base, as far as everything but the weights themselves tells.
struct CheckedAdapter {
  fs::Path weights_file;
  lora::PolicyId policy;  // named after the directory, with the number that it says, 0 if it says none
  std::shared_ptr<const lora::AdapterLayout> layout;
  std::vector<std::string> notes;  // what a user should be told
};
// FormatError unless the adapter was made for this base, as far as it knows; what a user should be told about that. Of
// the base only its name and fingerprints are looked at.
std::vector<std::string> check_base(const checkpoint::PeftDirectory& directory, const Base& base);

// Throws FormatError (file and tensor), ShapeError, or names another base.
CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base);

// Throws what check_adapter throws, and FormatError where copies of a shared A differ.
lora::AdapterVersion load_adapter(const CheckedAdapter& checked, const checkpoint::SafetensorsFile& weights,
                                  const Base& base);
// The same from the beginning; tells the notes.
lora::AdapterVersion load_adapter(const std::string& directory, const Base& base, const Control& control);
// A line for each note.
void tell_notes(const std::vector<std::string>& notes, const Control& control);

lora::AdapterVersion fresh_adapter(const lora::LoraConfig& config, const Base& base, uint64_t seed);

// Prints rank, modules and parameter counts.
void describe_adapter(const lora::AdapterVersion& adapter, const Base& base, const Control& control);

// Where a run stands: iterations done, version published, rows read, and the settings a resumed run must share.
struct Progress {
  int64_t iteration = 0, version = 0, data_position = 0;
  OrderedJson settings;
  OrderedJson evaluations = nullptr;  // what the recipe knows of them (recipes/best.h)
};
void save_training(const SaveOptions& options, const Base& base, const train::Trainer& trainer,
                   const Progress& progress);

// The newest checkpoint of --load; nullopt: --load is not given, or is --save and has none yet.
// ConfigError if it has none and is not --save.
std::optional<int64_t> iteration_to_load(const SaveOptions& options);

// What --load says: nothing to resume (with a printed line where that is allowed), or the newest checkpoint, which goes
// before --lora-adapter-path. ConfigError as above, or if its adapter or its settings contradict those given.
struct Resumed {
  lora::AdapterVersion adapter;
  int64_t iteration = 0, data_position = 0;
  int64_t optimizer_steps = 0;
  Buffer first_moment, second_moment;
  Json evaluations;  // null: none were kept
};
std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control);

// The adapter a fresh run starts with: the PEFT directory's, or new weights. ConfigError if flags say another rank,
// alpha, scaling or other modules than the directory.
lora::AdapterVersion starting_adapter(const AdapterOptions& options, const Base& base, uint64_t seed,
                                      const Control& control);

}  // namespace lockstep::recipes
