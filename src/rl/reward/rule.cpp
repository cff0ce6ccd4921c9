#include "rl/reward/rule.h"

#include <charconv>

#include "rl/reward/chance.h"
#include "rl/reward/dapo.h"
#include "rl/reward/deepscaler.h"
#include "rl/reward/exact.h"
#include "rl/reward/extract.h"
#include "rl/reward/f1.h"
#include "rl/reward/gpqa.h"
#include "rl/reward/gsm8k.h"
#include "rl/reward/json_schema.h"
#include "rl/reward/math.h"
#include "rl/reward/number.h"
#include "rl/reward/pattern.h"
#include "rl/reward/rule_numbers.h"
#include "rl/reward/shape.h"

namespace lockstep::rl {

namespace {

constexpr std::string_view kPrefix = "boxed_";

struct Entry {
  RewardType type;
  std::string_view name;
  bool may_be_boxed = false;
};

// math and deepscaler look for the box themselves.
constexpr Entry kRules[] = {{RewardType::math, "math"},
                            {RewardType::deepscaler, "deepscaler"},
                            {RewardType::dapo, "dapo", true},
                            {RewardType::gsm8k, "gsm8k", true},
                            {RewardType::f1, "f1", true},
                            {RewardType::gpqa, "gpqa", true},
                            {RewardType::number, "number", true},
                            {RewardType::exact, "exact", true},
                            {RewardType::regex, "regex", true},
                            {RewardType::json_schema, "json_schema", true},
                            {RewardType::length, "length"},
                            {RewardType::format, "format"},
                            {RewardType::repetition, "repetition"},
                            {RewardType::soft_overlong, "soft_overlong"},
                            {RewardType::random, "random"},
                            {RewardType::deterministic_random, "deterministic_random"},
                            {RewardType::zero, "zero"}};

std::optional<int64_t> wanted_length(std::string_view label) {
  const std::string_view text = trimmed(label);
  int64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && length > 0 ? std::optional(length) : std::nullopt;
}

std::optional<double> grade_label(const RewardRule& rule, std::string_view response, std::string_view label) {
  switch (rule.type) {
    case RewardType::math: return grade_math(response, label, rule.math_tolerance);
    case RewardType::deepscaler: return grade_deepscaler(response, label, rule.math_tolerance);
    case RewardType::gsm8k: return grade_gsm8k(response, label);
    case RewardType::f1: return grade_f1(response, label);
    case RewardType::number: return grade_number(response, label);
    case RewardType::exact: return grade_exact(response, label);
    case RewardType::regex: return grade_pattern(response, label);
    case RewardType::json_schema: return grade_json_schema(response, label);
    case RewardType::dapo: {
      const auto gold = dapo_gold(label);
      return gold ? std::optional(grade_dapo(response, *gold)) : std::nullopt;
    }
    case RewardType::gpqa: {
      const auto gold = choice_label(label);
      return gold ? std::optional(grade_gpqa(response, *gold)) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

}  // namespace

std::string rule_name(const RewardRule& rule) {
  for (const Entry& entry : kRules)
    if (entry.type == rule.type) return (rule.boxed ? std::string(kPrefix) : "").append(entry.name);
  return {};
}

std::optional<RewardRule> rule_of(std::string_view name) {
  const bool boxed = name.starts_with(kPrefix);
  if (boxed) name.remove_prefix(kPrefix.size());
  for (const Entry& entry : kRules)
    if (entry.name == name && (entry.may_be_boxed || !boxed)) return RewardRule{.type = entry.type, .boxed = boxed};
  return std::nullopt;
}

std::string rule_names() {
  std::string names;
  for (const bool boxed : {false, true})
    for (const Entry& entry : kRules)
      if (entry.may_be_boxed || !boxed)
        names += (names.empty() ? "" : "|") + rule_name({.type = entry.type, .boxed = boxed});
  return names;
}

std::optional<double> grade(const RewardRule& rule, const RuleSample& sample) {
  switch (rule.type) {
    case RewardType::format: return grade_format(sample.response);
    case RewardType::repetition: return grade_repetition(sample.response, rule.ngram, rule.repetition_penalty);
    case RewardType::soft_overlong:
      return grade_soft_overlong(sample.length, rule.overlong_length, rule.overlong_cache);
    case RewardType::zero: return 0.0;
    case RewardType::random: return draw_reward(sample.rollout, sample.group, sample.index);
    case RewardType::deterministic_random: return draw_reward(sample.prompt, sample.response);
    case RewardType::length: {
      const auto wanted = wanted_length(sample.label);
      return wanted ? std::optional(grade_length(sample.length, *wanted)) : std::nullopt;
    }
    default: break;
  }
  return grade_label(rule, rule.boxed ? last_boxed(sample.response).value_or("") : sample.response, sample.label);
}

bool reads_label(const RewardRule& rule) {
  switch (rule.type) {
    case RewardType::format:
    case RewardType::repetition:
    case RewardType::soft_overlong:
    case RewardType::random:
    case RewardType::deterministic_random:
    case RewardType::zero: return false;
    default: return true;
  }
}

bool is_gradable(const RewardRule& rule, std::string_view label) {
  switch (rule.type) {
    case RewardType::math:
    case RewardType::deepscaler:
    case RewardType::gsm8k:
    case RewardType::number: return label_answer(label).has_value();
    case RewardType::dapo: return dapo_gold(label).has_value();
    case RewardType::gpqa: return choice_label(label).has_value();
    case RewardType::regex: return is_pattern(label);
    case RewardType::json_schema: return is_schema(label);
    case RewardType::length: return wanted_length(label).has_value();
    default: return true;
  }
}

const char* wanted_label(const RewardRule& rule) {
  switch (rule.type) {
    case RewardType::dapo: return "a number";
    case RewardType::gpqa: return "a letter from A to J";
    case RewardType::regex: return "a regular expression of Python's";
    case RewardType::json_schema: return "a JSON Schema of the keywords in docs/rewards.md";
    case RewardType::length: return "a number of tokens above 0";
    default: return "a text, or one in \\boxed{} or behind ####";
  }
}

std::vector<double> rule_numbers(const RewardRule& rule) {
  return {static_cast<double>(rule.ngram), rule.repetition_penalty, static_cast<double>(rule.overlong_length),
          static_cast<double>(rule.overlong_cache)};
}

const char* rule_difference(const RewardRule& rule) {
  switch (rule.type) {
    case RewardType::math:
    case RewardType::deepscaler:
      return "answers are compared exactly, without an algebra system; docs/rewards.md lists the verdicts that differ "
             "from slime's and miles'";
    case RewardType::gpqa:
      return "the last choice that stands alone counts; slime's rule takes the first, finds letters inside words "
             "(\"the "
             "answer depends\" is D), and looks for the text of the choice, too";
    case RewardType::f1: return "as in slime for ASCII; other letters keep their case, other punctuation stays";
    case RewardType::random:
    case RewardType::deterministic_random:
      return "drawn from counters, so that a run can be repeated: other values than slime's and miles'";
    default: return "";
  }
}

}  // namespace lockstep::rl
