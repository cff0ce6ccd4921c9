// Rewards computed from a response, its label and its length: which grader, and its verdicts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rl {

enum class RewardType {
  math,
  deepscaler,
  dapo,
  gsm8k,
  f1,
  gpqa,
  number,
  exact,
  regex,
  json_schema,
  length,
  format,
  repetition,
  soft_overlong,
  random,
  deterministic_random,
  zero
};

struct RewardRule {
  RewardType type = RewardType::number;
  bool boxed = false;              // boxed_NAME: of what is in the last \boxed{}; of nothing if there is none
  double math_tolerance = 0;       // of math, deepscaler: difference allowed between numbers, relative to the label's
  int64_t ngram = 3;               // of repetition: words in a row
  double repetition_penalty = -1;  // of repetition: if all are the same
  int64_t overlong_length = 0;     // of soft_overlong: tokens of the longest response
  int64_t overlong_cache = 0;      // of soft_overlong: the last tokens of those, which cost
};

// What a rule may look at.
struct RuleSample {
  std::string_view response, label, prompt = {};
  int64_t length = 0;  // tokens of the response
  uint32_t rollout = 0;
  int64_t group = 0, index = 0;
};

std::string rule_name(const RewardRule& rule);  // "boxed_f1"
// By its name, else as it is by default. nullopt: no rule is called so; boxed_ goes before dapo, exact, f1, gpqa,
// gsm8k, json_schema, number and regex.
std::optional<RewardRule> rule_of(std::string_view name);
std::string rule_names();  // all of them, separated by '|'

// nullopt: unknown, because the label has nothing to compare with (is_gradable), or what it asks for takes too long.
std::optional<double> grade(const RewardRule& rule, const RuleSample& sample);

// Whether grade() knows a verdict for this label, whatever the response; and what a label should be, for messages.
bool is_gradable(const RewardRule& rule, std::string_view label);
const char* wanted_label(const RewardRule& rule);
bool reads_label(const RewardRule& rule);

// How verdicts differ from those of the system whose name the rule has, as one line; empty: they do not, or the rule is
// our own.
const char* rule_difference(const RewardRule& rule);

}  // namespace lockstep::rl
