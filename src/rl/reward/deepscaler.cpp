#include "rl/reward/deepscaler.h"

#include "rl/reward/extract.h"
#include "rl/reward/math.h"

namespace lockstep::rl {

std::string_view deepscaler_solution(std::string_view response) {
  constexpr std::string_view kThought = "</think>", kResponse = "###Response";
  const size_t heading = response.find(kResponse);
  std::string_view solution;
  if (response.find(kThought) != std::string_view::npos) {
    solution = behind_thought(response);
  } else if (heading != std::string_view::npos) {
    solution = response.substr(heading + kResponse.size());
    solution = solution.substr(0, solution.find(kResponse));
  }
  return solution;
}

std::optional<double> grade_deepscaler(std::string_view response, std::string_view label, double tolerance) {
  return grade_math(deepscaler_solution(response), label, tolerance);
}

}  // namespace lockstep::rl
