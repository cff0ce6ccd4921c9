// Rewards computed from text: which grader, and its verdicts.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

enum class RewardType { math, number, exact };
const char* reward_name(RewardType type);

struct RewardRule {
  RewardType type = RewardType::number;
  double math_tolerance = 0;  // of math: difference allowed between two numbers, relative to the label's
};

// nullopt: unknown, because the label has no answer to compare with.
std::optional<float> grade(const RewardRule& rule, std::string_view response, std::string_view label);

// Whether grade() knows a verdict for this label, whatever the response.
bool is_gradable(const RewardRule& rule, std::string_view label);

}  // namespace lockstep::rl
