#include "rl/reward/answer.h"

#include "rl/reward/dapo.h"
#include "rl/reward/deepscaler.h"
#include "rl/reward/extract.h"
#include "rl/reward/gpqa.h"
#include "rl/reward/gsm8k.h"
#include "rl/reward/number.h"

namespace lockstep::rl {

namespace {

std::optional<std::string> text_of(std::optional<std::string_view> answer) {
  if (!answer) return std::nullopt;
  const std::string_view text = trimmed(*answer);
  return text.empty() ? std::nullopt : std::optional(std::string(text));
}

std::optional<std::string> text_of(const std::optional<std::string>& answer) {
  return answer ? text_of(std::string_view(*answer)) : std::nullopt;
}

}  // namespace

bool has_answers(const RewardRule& rule) {
  switch (rule.type) {
    case RewardType::math:
    case RewardType::deepscaler:
    case RewardType::number:
    case RewardType::gsm8k:
    case RewardType::dapo:
    case RewardType::gpqa:
    case RewardType::exact: return true;
    default: return false;
  }
}

std::optional<std::string> answer_of(const RewardRule& rule, std::string_view response) {
  const std::string_view text = rule.boxed ? last_boxed(response).value_or("") : response;
  switch (rule.type) {
    case RewardType::math: return text_of(last_boxed(text));
    case RewardType::deepscaler: return text_of(last_boxed(deepscaler_solution(text)));
    case RewardType::number: return text_of(number_answer(text));
    case RewardType::gsm8k: return text_of(gsm8k_answer(text));
    case RewardType::dapo: return text_of(dapo_answer(text));
    case RewardType::exact: return text_of(std::optional(text));
    case RewardType::gpqa: {
      const auto choice = gpqa_choice(text);
      return choice ? std::optional(std::string(1, *choice)) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

}  // namespace lockstep::rl
