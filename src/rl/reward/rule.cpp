#include "rl/reward/rule.h"

#include "rl/reward/exact.h"
#include "rl/reward/extract.h"
#include "rl/reward/math.h"
#include "rl/reward/number.h"

namespace lockstep::rl {

const char* reward_name(RewardType type) {
  switch (type) {
    case RewardType::math: return "math";
    case RewardType::number: return "number";
    case RewardType::exact: return "exact";
  }
  return "";
}

std::optional<float> grade(const RewardRule& rule, std::string_view response, std::string_view label) {
  switch (rule.type) {
    case RewardType::math: return grade_math(response, label, rule.math_tolerance);
    case RewardType::number: return grade_number(response, label);
    case RewardType::exact: return grade_exact(response, label);
  }
  return std::nullopt;
}

bool is_gradable(const RewardRule& rule, std::string_view label) {
  return rule.type == RewardType::exact || label_answer(label).has_value();
}

}  // namespace lockstep::rl
