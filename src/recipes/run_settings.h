// The settings that decide the results of a run. Every checkpoint has them. A run that continues from a checkpoint must
// have the same settings; differences are only allowed for those that SaveOptions::overrides names.
//
// A setting has the name of its flag ("--lr"), or a name that ends with one ("tokens and labels of --prompt-data"):
// SaveOptions::overrides may name it by that flag, with or without the dashes.
#pragma once

#include <string>
#include <vector>

#include "recipes/options.h"
#include "train/schedule.h"

namespace lockstep::recipes {

// What all runs share: the optimizer without its schedule's length, seed, and dropout unless it is left to an adapter
// to start from.
OrderedJson common_settings(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                            const TrainingOptions& training);
// Steps of warm-up and decay, where they decide a learning rate.
OrderedJson schedule_settings(const train::Schedule& schedule);

// A setting as JSON, but a number that a float holds with the digits that tell it from other floats: 0.3, not
// 0.30000001192092896.
std::string setting_text(const OrderedJson& value);

struct SettingDifference {
  std::string name, stored, wanted;  // as setting_text; "nothing" where one side has none
};
// Settings with different values. `all`: also those that only one side has; `only_wanted`: not those that only `stored`
// has.
enum class Compare { all, only_wanted };
std::vector<SettingDifference> differences(const Json& stored, const OrderedJson& wanted,
                                           Compare compare = Compare::all);

// A difference in "--device", if a run moves from one generation of GPUs to another (device_generation), whose matmuls
// add in another order. Moving from or to a CPU is asked for by a flag and is no difference.
std::vector<SettingDifference> generation_differences(const std::string& stored, const std::string& wanted);

// Whether `overrides` names the setting.
bool is_overridden(const std::string& setting, const std::vector<std::string>& overrides);

// Returns the differences that overrides allow. ConfigError naming every other one, `where` they are stored, and the
// overrides that would allow them.
std::vector<SettingDifference> require_same_settings(const std::vector<SettingDifference>& differences,
                                                     const std::vector<std::string>& overrides,
                                                     const std::string& where);

}  // namespace lockstep::recipes
