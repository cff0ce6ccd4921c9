#include "rl/reward/math.h"

#include "rl/reward/extract.h"
#include "rl/reward/math_equality.h"

namespace lockstep::rl {

std::optional<float> grade_math(std::string_view response, std::string_view label, double tolerance) {
  const auto wanted = label_answer(label);
  if (!wanted) return std::nullopt;
  const auto given = last_boxed(response);
  if (!given) return 0.0f;
  Work work;
  const MathAnswer right = parse_math_answer(*wanted, work);
  return same_math(right, parse_math_answer(*given, work), tolerance, work) ? 1.0f : 0.0f;
}

}  // namespace lockstep::rl
