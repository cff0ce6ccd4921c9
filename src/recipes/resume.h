// What a run goes on from: the checkpoint in SaveOptions::load.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/train_state.h"
#include "recipes/adapter.h"

namespace lockstep::recipes {

// Finds the checkpoint to continue from: iteration ckpt_step in the directory SaveOptions::load, or the newest complete
// one there. Damaged checkpoints are skipped, each with a line on `info`. If `settings` are given, older checkpoints
// with other settings are skipped, too: they belong to an earlier run in the same directory. nullptr: options.load is
// empty, or it is the same directory as options.save and there is no checkpoint yet. ConfigError: another directory has
// no checkpoint, or not that iteration. FormatError: all of them are damaged.
std::shared_ptr<const checkpoint::LoadedCheckpoint> checkpoint_to_load(const SaveOptions& options,
                                                                       const OrderedJson* settings, std::ostream& info);

// The adapter, if SaveOptions::load and ckpt_step name a checkpoint of miles or vime; else nullopt.
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
// Reads the checkpoint that checkpoint_to_load finds; nullopt if there is none (a line says so). Only the adapter is
// read with SaveOptions::finetune, or from a checkpoint of another system; the latter must not lie in
// SaveOptions::save, where it would be overwritten: ConfigError. A checkpoint takes precedence over
// wanted.adapter_path. ConfigError as checkpoint_to_load; also if the adapter or a setting contradicts what was asked
// for and no override allows it. If the device is another one than the checkpoint's, a line says that results will
// differ in their bits.
std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control);

// What resume() would refuse of a checkpoint before it reads its weights: an adapter that contradicts what was asked for,
// or one of `settings`, of which not all have to be given (ConfigError).
void check_resumable(const checkpoint::LoadedCheckpoint& checkpoint, const SaveOptions& options,
                     const AdapterOptions& wanted, const OrderedJson& settings, const Base& base);

// "cpu", or the GPU's name: where the same run has the same bits.
std::string device_name(const Base& base);

}  // namespace lockstep::recipes
