#include "cli/correction_flags.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace lockstep::cli {

namespace {

using rl::CorrectionAction;
using rl::CorrectionRule;
using rl::Measure;
using rl::MeasureLevel;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) c == at ? (void)parts.emplace_back() : parts.back().push_back(c);
  return parts;
}

double bound(const std::string& flag, const std::string& text) {
  return parse_real(flag, text, -1e9, 1e9);
}

// verl's threshold: "lo_hi", or u.
struct Threshold {
  std::optional<double> low;
  double high = 0;
};
Threshold threshold_of(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = split(text, '_');
  if (parts.size() > 2)
    throw ConfigError({.what = "bad value of " + flag, .where = flag, .got = text, .wanted = "U or LO_HI"});
  if (parts.size() == 1) return {.high = bound(flag, parts[0])};
  return {.low = bound(flag, parts[0]), .high = bound(flag, parts[1])};
}

template <class Value, size_t N>
Value named(const std::pair<std::string_view, Value> (&names)[N], const std::string& name, const std::string& flag) {
  std::string all;
  for (const auto& [known, value] : names) {
    if (name == known) return value;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  throw ConfigError({.what = "bad value of " + flag, .where = flag, .got = name, .wanted = "one of " + all});
}

constexpr std::pair<std::string_view, Measure> kMeasures[] = {
    {"ratio", Measure::ratio}, {"k1", Measure::k1}, {"k2", Measure::k2}, {"k3", Measure::k3}};
constexpr std::pair<std::string_view, MeasureLevel> kLevels[] = {{"token", MeasureLevel::token},
                                                                 {"seq_sum", MeasureLevel::seq_sum},
                                                                 {"seq_mean", MeasureLevel::seq_mean},
                                                                 {"seq_max", MeasureLevel::seq_max}};
constexpr std::pair<std::string_view, CorrectionAction> kActions[] = {
    {"truncate", CorrectionAction::truncate}, {"mask", CorrectionAction::mask}, {"reject", CorrectionAction::reject}};

// MEASURE:LEVEL:ACTION:LO:HI
CorrectionRule our_rule(const std::string& text) {
  const std::string flag = "--correction";
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 5)
    throw ConfigError({.what = "bad value of " + flag,
                       .where = flag,
                       .got = text,
                       .wanted = "MEASURE:LEVEL:ACTION:LO:HI, such as ratio:token:truncate:0:2"});
  return {.measure = named(kMeasures, parts[0], flag),
          .level = named(kLevels, parts[1], flag),
          .action = named(kActions, parts[2], flag),
          .low = bound(flag, parts[3]),
          .high = bound(flag, parts[4])};
}

CorrectionRule trl_rule(const CorrectionForm& form) {
  const bool sequence = form.trl_mode.starts_with("sequence"), truncate = form.trl_mode.ends_with("truncate");
  return {.level = sequence ? MeasureLevel::seq_sum : MeasureLevel::token,
          .action = truncate ? CorrectionAction::truncate : CorrectionAction::mask,
          .low = form.trl_min.value_or(0),
          .high = form.trl_max};
}

CorrectionRule verl_weight(const CorrectionForm& form) {
  const Threshold threshold = threshold_of("--rollout-is-threshold", form.verl_is_threshold);
  return {.level = form.verl_is == "sequence" ? MeasureLevel::seq_sum : MeasureLevel::token,
          .action = threshold.low ? CorrectionAction::mask : CorrectionAction::truncate,
          .low = threshold.low.value_or(0),
          .high = threshold.high};
}

// verl's k1 is a bound of the ratio itself; its k2 and k3 have an upper bound.
CorrectionRule verl_rejection(const std::string& name, const std::string& threshold_text) {
  const std::string flag = "--rollout-rs";
  const size_t cut = name.rfind('_');
  const std::string level = name.substr(0, cut), measure = cut == name.npos ? "" : name.substr(cut + 1);
  if (level == "seq_max" && measure == "k1")
    throw ConfigError({.what = "verl has no seq_max_k1", .where = flag, .got = name});
  const Threshold threshold = threshold_of("--rollout-rs-threshold", threshold_text);
  CorrectionRule rule{.measure = named(kMeasures, measure, flag),
                      .level = named(kLevels, level, flag),
                      .action = CorrectionAction::reject,
                      .low = threshold.low.value_or(0),
                      .high = threshold.high};
  if (rule.measure == Measure::ratio)
    throw ConfigError({.what = "bad value of " + flag, .where = flag, .got = name, .wanted = "k1, k2 or k3"});
  if (rule.measure == Measure::k1) {
    rule.measure = Measure::ratio;
    rule.low = threshold.low.value_or(1 / threshold.high);
  } else if (threshold.low) {
    throw ConfigError(
        {.what = "k2 and k3 have an upper bound only", .where = "--rollout-rs-threshold", .got = threshold_text});
  }
  return rule;
}

// AReaL's fields: level, action, metric, agg, upper, lower.
CorrectionRule areal_rule(const std::string& text) {
  const std::string flag = "--rejection-sampling";
  CorrectionRule rule{.action = CorrectionAction::mask, .low = 0, .high = 5};
  bool sequence = false;
  std::string agg = "mean";
  for (const std::string& field : split(text, ',')) {
    const std::vector<std::string> pair = split(field, '=');
    const std::string value = pair.size() == 2 ? pair[1] : "";
    if (pair[0] == "level" && (value == "token" || value == "sequence"))
      sequence = value == "sequence";
    else if (pair[0] == "action" && (value == "mask" || value == "clamp"))
      rule.action = value == "mask" ? CorrectionAction::mask : CorrectionAction::truncate;
    else if (pair[0] == "metric" && value == "ratio")
      rule.measure = Measure::ratio;
    else if (pair[0] == "agg" && (value == "sum" || value == "mean" || value == "max"))
      agg = value;
    else if (pair[0] == "upper" || pair[0] == "lower")
      (pair[0] == "upper" ? rule.high : rule.low) = bound(flag, value);
    else
      throw ConfigError({.what = "bad value of " + flag,
                         .where = flag,
                         .got = field,
                         .wanted = "level=token|sequence, action=mask|clamp, metric=ratio, agg=sum|mean|max, upper=X, "
                                   "lower=X, separated by commas",
                         .attempt = "--correction has the KL estimates"});
  }
  if (sequence) rule.level = named(kLevels, "seq_" + agg, flag);
  return rule;
}

// The rules of the one system whose names were used.
std::vector<CorrectionRule> rules_of(const CorrectionForm& form) {
  std::vector<CorrectionRule> rules;
  std::vector<std::string> systems;
  if (form.use_tis) {
    systems.emplace_back("--use-tis");
    rules.push_back({.low = form.tis_clip_low, .high = form.tis_clip});
  }
  if (!form.trl_mode.empty()) {
    systems.emplace_back("--importance-sampling-mode");
    rules.push_back(trl_rule(form));
  }
  if (!form.verl_is.empty() || !form.verl_rs.empty()) systems.emplace_back("--rollout-is, --rollout-rs");
  if (!form.verl_is.empty()) rules.push_back(verl_weight(form));
  if (form.verl_rs.size() != form.verl_rs_threshold.size())
    throw ConfigError({.what = "each of --rollout-rs needs its threshold",
                       .where = "--rollout-rs-threshold",
                       .got = fmt::format("{}", form.verl_rs_threshold.size()),
                       .wanted = fmt::format("{}", form.verl_rs.size())});
  for (size_t i = 0; i < form.verl_rs.size(); ++i)
    rules.push_back(verl_rejection(form.verl_rs[i], form.verl_rs_threshold[i]));
  if (!form.rejection.empty()) {
    systems.emplace_back("--rejection-sampling");
    rules.push_back(areal_rule(form.rejection));
  }
  if (!form.rules.empty()) systems.emplace_back("--correction");
  for (const std::string& rule : form.rules) rules.push_back(our_rule(rule));
  if (systems.size() > 1)
    throw ConfigError({.what = "corrections of two systems",
                       .where = systems[0],
                       .got = systems[1],
                       .attempt = "keep one; --correction takes any list of rules"});
  return rules;
}

void check_bounds(const CorrectionRule& rule) {
  if (rule.low > rule.high || (rule.measure == Measure::ratio && (rule.low > 1 || rule.high < 1)))
    throw ConfigError({.what = "bounds of a correction must be in order and leave equal log-probs alone",
                       .where = "--correction",
                       .got = fmt::format("{} to {}", shown_number(rule.low), shown_number(rule.high)),
                       .wanted = "of a ratio: at most 1, and at least 1"});
  if (rule.action == CorrectionAction::truncate && rule.measure != Measure::ratio)
    throw ConfigError({.what = "only ratios can be truncated",
                       .where = "--correction",
                       .attempt = "mask or reject by a KL estimate"});
}

}  // namespace

std::vector<Flag> correction_flags(CorrectionForm& form, recipes::RlOptions& o) {
  const auto into = [](std::string& target) { return [&target](const std::string& name) { target = name; }; };
  return {
      {"--use-tis", "", toggle(form.use_tis), "slime: tokens weigh exp(old - sampled), bounded by the next two"},
      {"--tis-clip", "X", number(form.tis_clip, 1, 1e6), "its upper bound"},
      {"--tis-clip-low", "X", number(form.tis_clip_low, 0, 1), "its lower bound"},
      {"--importance-sampling-mode", "MODE",
       choice("token_truncate|token_mask|sequence_truncate|sequence_mask", "", into(form.trl_mode)),
       "TRL's corrections"},
      {"--importance-sampling-clip-max", "X", number(form.trl_max, 1, 1e6), "their upper bound"},
      {"--importance-sampling-clip-min", "X", number(form.trl_min, 0, 1), "their lower bound (none)"},
      {"--rollout-is", "LEVEL", choice("token|sequence", "", into(form.verl_is)), "verl's importance weights"},
      {"--rollout-is-threshold", "T", text(form.verl_is_threshold), "upper bound, or LO_HI: 0 outside (IcePop)"},
      {"--rollout-is-batch-normalize", "", toggle(o.correction.normalize), "weights are divided by their mean"},
      {"--rollout-rs", "NAME...", texts(form.verl_rs), "verl's rejection: {token,seq_sum,seq_mean,seq_max}_{k1,k2,k3}"},
      {"--rollout-rs-threshold", "T...", texts(form.verl_rs_threshold), "of each: U, of k1 also LO_HI"},
      {"--rollout-token-veto-threshold", "X", number(o.correction.veto, 0, 1),
       "a sample with a ratio below it weighs 0"},
      {"--rejection-sampling", "FIELDS", text(form.rejection),
       "AReaL's: level=token,action=mask,metric=ratio,upper=5.0 and so on"},
      {"--correction", "RULE...", texts(form.rules),
       "{ratio,k1,k2,k3}:{token,seq_sum,seq_mean,seq_max}:{truncate,mask,reject}:LO:HI"},
      {"--use-opsm", "", toggle(form.use_opsm), "a sample with A < 0 learns nothing where mean(old - lp) > delta"},
      {"--opsm-delta", "X", number(form.opsm_delta, 0, 1e6), "that delta"},
      {"--off-policy-mask-threshold", "X", number(form.sampler_threshold, 0, 1e6),
       "TRL: the same where mean(sampled - lp) > X"}};
}

void resolve_correction(const CorrectionForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  o.correction.rules = rules_of(form);
  for (const CorrectionRule& rule : o.correction.rules) check_bounds(rule);
  if (form.use_opsm && form.sampler_threshold)
    throw ConfigError({.what = "two masks of whole samples", .where = "--use-opsm, --off-policy-mask-threshold"});
  if (form.use_opsm) o.loss.sequence_mask = {.on = true, .delta = form.opsm_delta};
  if (form.sampler_threshold)
    o.loss.sequence_mask = {.on = true, .delta = *form.sampler_threshold, .from_sampler = true};
  if (o.correction.is_needed() && !o.engine.kind && !o.async.on)
    notes.push_back(
        "off-policy correction: the engine's log-probs are the trainer's, bit for bit, so every weight is exactly 1");
}

}  // namespace lockstep::cli
