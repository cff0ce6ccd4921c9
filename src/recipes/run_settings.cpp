#include "recipes/run_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/device_facts.h"
#include "core/error.h"

namespace lockstep::recipes {

namespace {

// The flag that a setting's name ends with.
std::string flag_of(const std::string& setting) {
  const size_t begin = setting.rfind("--");
  return begin == std::string::npos ? setting : setting.substr(begin);
}

std::string without_dashes(const std::string& name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

std::string joined(const std::vector<SettingDifference>& differences, std::string SettingDifference::*value) {
  std::vector<std::string> texts;
  for (const SettingDifference& difference : differences)
    texts.push_back(fmt::format("{} {}", difference.name, difference.*value));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

OrderedJson common_settings(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                            const TrainingOptions& training) {
  OrderedJson settings{{"--lr", optimizer.schedule.lr},
                       {"--min-lr", optimizer.schedule.min_lr},
                       {"--lr-decay-style", train::decay_style_name(optimizer.schedule.style)},
                       {"--loraplus-lr-ratio", optimizer.loraplus_lr_ratio},
                       {"--adam-beta1", optimizer.beta1},
                       {"--adam-beta2", optimizer.beta2},
                       {"--adam-eps", optimizer.eps},
                       {"--weight-decay", optimizer.weight_decay},
                       {"--clip-grad", optimizer.clip_grad},
                       {"--calculate-per-token-loss", training.per_token_loss},
                       {"--seed", training.seed}};
  if (adapter.asked_dropout || adapter.adapter_path.empty()) settings["--lora-dropout"] = adapter.config.dropout;
  // Checkpoints of runs with the usual number do not name it.
  if (training.gradient_lanes != train::kGradientLanes) settings["--gradient-lanes"] = training.gradient_lanes;
  if (training.balance == train::Balance::tokens) settings["--balance-data"] = true;
  if (training.balance == train::Balance::flops) settings["--balance-by-flops"] = true;
  return settings;
}

OrderedJson schedule_settings(const train::Schedule& schedule) {
  OrderedJson settings = {{"--lr-warmup-iters", schedule.warmup_steps}};
  if (schedule.style == train::DecayStyle::constant) return settings;
  settings["--lr-decay-iters"] = schedule.decay_steps;
  if (schedule.style != train::DecayStyle::wsd) return settings;
  settings["--lr-wsd-decay-iters"] = schedule.wsd_decay_steps;
  constexpr const char* kStyles[] = {"exponential", "linear", "cosine", "minus_sqrt"};  // as train::parse_wsd_style
  settings["--lr-wsd-decay-style"] = kStyles[static_cast<size_t>(schedule.wsd_style)];
  return settings;
}

namespace {

// Checkpoints of earlier builds name the one way to compute that is left.
bool is_of_earlier_builds(const std::string& name, const Json& value) {
  return name == "--numerics" && value == "exact";
}

}  // namespace

std::string setting_text(const OrderedJson& value) {
  if (!value.is_number_float()) return json_text(value);
  const auto number = value.get<double>();
  const auto single = static_cast<float>(number);
  return static_cast<double>(single) == number ? fmt::format("{}", single) : json_text(value);
}

std::vector<SettingDifference> differences(const Json& stored, const OrderedJson& wanted, Compare compare) {
  std::vector<SettingDifference> found;
  for (const auto& [name, value] : wanted.items()) {
    const std::string text = json_text(value);
    const std::string kept = stored.contains(name) ? json_text(stored[name]) : "nothing";
    if (text == kept) continue;
    const std::string shown = setting_text(value);
    const std::string shown_kept = stored.contains(name) ? setting_text(OrderedJson(stored[name])) : kept;
    found.push_back(shown == shown_kept ? SettingDifference{name, kept, text}
                                        : SettingDifference{name, shown_kept, shown});
  }
  if (compare == Compare::all)
    for (const auto& [name, value] : stored.items())
      if (!wanted.contains(name) && !is_of_earlier_builds(name, value))
        found.push_back({name, json_text(value), "nothing"});
  return found;
}

std::vector<SettingDifference> generation_differences(const std::string& stored, const std::string& wanted) {
  const std::string cpu = device_generation(Device::cpu);
  if (stored == wanted || stored == cpu || wanted == cpu) return {};
  const auto text = [](const std::string& generation) { return "a GPU of compute capability " + generation; };
  return {{"--device", text(stored), text(wanted)}};
}

bool is_overridden(const std::string& setting, const std::vector<std::string>& overrides) {
  return std::ranges::any_of(overrides, [&](const std::string& name) {
    return name == setting || without_dashes(name) == without_dashes(flag_of(setting));
  });
}

std::vector<SettingDifference> require_same_settings(const std::vector<SettingDifference>& differences,
                                                     const std::vector<std::string>& overrides,
                                                     const std::string& where) {
  std::vector<SettingDifference> allowed, refused;
  for (const SettingDifference& difference : differences)
    (is_overridden(difference.name, overrides) ? allowed : refused).push_back(difference);
  if (refused.empty()) return allowed;
  std::vector<std::string> names;
  for (const SettingDifference& difference : refused) {
    const std::string name = without_dashes(flag_of(difference.name));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  throw ConfigError({.what = "the run to go on with was made with other settings",
                     .where = where,
                     .got = joined(refused, &SettingDifference::wanted),
                     .wanted = joined(refused, &SettingDifference::stored),
                     .attempt = fmt::format("those of the checkpoint; SaveOptions::overrides {} to go on with other "
                                            "ones; or a fresh run",
                                            fmt::join(names, " "))});
}

}  // namespace lockstep::recipes
