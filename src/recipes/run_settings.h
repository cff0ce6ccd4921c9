// The settings that decide the results of a run. They lie in every checkpoint, and whoever goes on from there has the
// same ones, or names those that shall differ.
//
// A setting has the name of its flag ("--lr"), or a name that ends with one ("tokens and labels of --prompt-data"):
// SaveOptions::overrides may name it by that flag, with or without the dashes.
#pragma once

#include <string>
#include <vector>

#include "recipes/options.h"
#include "train/schedule.h"

namespace lockstep::recipes {

// What all runs share: the optimizer without its schedule's length, seed, dropout.
OrderedJson common_settings(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                            const TrainingOptions& training);
// Steps of warm-up and decay, where they decide a learning rate.
OrderedJson schedule_settings(const train::Schedule& schedule);

struct SettingDifference {
  std::string name, stored, wanted;  // as JSON; "nothing" where one side has none
};
// Of the names in either, in their order; `only`: of the names in `wanted`.
enum class Compare { all, only_wanted };
std::vector<SettingDifference> differences(const Json& stored, const OrderedJson& wanted,
                                           Compare compare = Compare::all);

// "--device", if a run that computed on `stored` goes on on `wanted` (device_generation) and both are GPUs, but of two
// generations: their matmuls add up in other ways. From or to a CPU is a choice that somebody made.
std::vector<SettingDifference> generation_differences(const std::string& stored, const std::string& wanted);

// Whether `overrides` names the setting.
bool is_overridden(const std::string& setting, const std::vector<std::string>& overrides);

// Returns the differences that overrides allow. ConfigError naming every other one, `where` they are stored, and the
// overrides that would allow them.
std::vector<SettingDifference> require_same_settings(const std::vector<SettingDifference>& differences,
                                                     const std::vector<std::string>& overrides,
                                                     const std::string& where);

}  // namespace lockstep::recipes
