// What a run goes on from: the checkpoint in SaveOptions::load.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/train_state.h"
#include "recipes/adapter.h"

namespace lockstep::recipes {

// The checkpoint that SaveOptions::load and ckpt_step say: the newest that is whole. Damaged ones are passed over, each
// with a line on `info`, and so are older ones that were made with other settings than `settings` (if given), which
// belong to an earlier run in that directory. nullptr if options.load is empty, or is the same directory as
// options.save and holds none yet. ConfigError: it is another directory and holds none, or not that iteration.
// FormatError: none is whole.
std::shared_ptr<const checkpoint::LoadedCheckpoint> checkpoint_to_load(const SaveOptions& options,
                                                                       const OrderedJson* settings, std::ostream& info);

// The adapter of miles' or vime's checkpoint that SaveOptions::load and ckpt_step say; nothing: they say none of
// theirs.
std::optional<fs::Path> foreign_checkpoint(const SaveOptions& options);

// An adapter of a checkpoint, placed on the base's device. Throws what load::check_adapter and load::load_adapter
// throw, FormatError if there is no policy of this name.
lora::AdapterVersion loaded_policy(const checkpoint::LoadedCheckpoint& checkpoint, const std::string& name,
                                   const Base& base, const Control& control);

// Moments named "first_moment" and "second_moment"; FormatError unless they are `floats` f32 each.
struct Moments {
  Buffer first, second;
};
Moments loaded_moments(const NamedTensors& tensors, int64_t floats, const std::string& where);

struct Resumed {
  lora::AdapterVersion adapter;
  int64_t iteration = 0, data_position = 0;
  int64_t optimizer_steps = 0, skipped_steps = 0;
  std::optional<Moments> moments;  // none: the optimizer starts anew
  Json evaluations;                // null: none were kept
  Json settings;                   // that the checkpoint was made with; null: they do not matter (finetune)
  std::string where;               // train_state.json, for messages
  std::shared_ptr<const checkpoint::LoadedCheckpoint> checkpoint;  // for its parts and other policies
};
// nullopt where checkpoint_to_load gives none (a line says so). Of another system's checkpoint the adapter is taken and
// nothing else, as with SaveOptions::finetune; ConfigError if it lies in SaveOptions::save, where it would be replaced.
// A checkpoint takes precedence over
// wanted.adapter_path. ConfigError as checkpoint_to_load, or if the checkpoint's adapter or settings contradict those
// given, without an override. Where the device is another one a line says that bits change.
std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control);

// "cpu", or the GPU's name: where the same run has the same bits.
std::string device_name(const Base& base);

}  // namespace lockstep::recipes
