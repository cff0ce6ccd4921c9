// Where an adapter comes from and where it goes: fresh, a PEFT directory, or a checkpoint of ours.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "load/adapter.h"
#include "recipes/base.h"
#include "train/trainer.h"

namespace lockstep::recipes {

// Checks and loads a PEFT directory, and prints its notes. Throws what load::check_adapter and load::load_adapter
// throw.
lora::AdapterVersion load_adapter(const std::string& directory, const Base& base, const Control& control);
// Prints a line for each note.
void print_notes(const std::vector<std::string>& notes, const Control& control);

// What an adapter has beside plain factors of its modules: ", DoRA, lm_head whole"; empty: nothing.
std::string kind_text(const lora::LoraConfig& config);
// Prints rank, modules and parameter counts.
void describe_adapter(const lora::AdapterVersion& adapter, const Base& base, const Control& control);

// Where a run stands: iterations done, version published, rows read, and the settings a resumed run must share.
struct Progress {
  int64_t iteration = 0, version = 0, data_position = 0;
  OrderedJson settings;
  OrderedJson evaluations = nullptr;  // of the recipe's own (recipes/held_out.h); null: none
};
void save_training(const SaveOptions& options, const Base& base, const train::Trainer& trainer,
                   const Progress& progress);

// The newest checkpoint in options.load; nullopt if options.load is empty, or is the same directory as options.save and
// holds none yet. ConfigError if it is another directory and holds none.
std::optional<int64_t> iteration_to_load(const SaveOptions& options);

// The run to resume, read from the newest checkpoint in options.load; nullopt where iteration_to_load gives none (a
// line says so). A checkpoint takes precedence over wanted.adapter_path. ConfigError as iteration_to_load, or if the
// checkpoint's adapter or settings contradict those given.
struct Resumed {
  lora::AdapterVersion adapter;
  int64_t iteration = 0, data_position = 0;
  int64_t optimizer_steps = 0;
  Buffer first_moment, second_moment;
  Json evaluations;  // null: none were kept
};
std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control);

// The adapter a fresh run starts with: the PEFT directory's, or new weights. The directory supplies what the options do
// not ask for; ConfigError if they ask for another rank, alpha, scaling, type or other modules than it has.
lora::AdapterVersion starting_adapter(const AdapterOptions& options, const Base& base, uint64_t seed,
                                      const Control& control);
// The layout of that adapter, of which no weight is read. The same errors.
std::shared_ptr<const lora::AdapterLayout> starting_layout(const AdapterOptions& options, const Base& base);

}  // namespace lockstep::recipes
