#include "rl/reward/deepscaler.h"

#include "rl/reward/extract.h"
#include "rl/reward/math.h"

namespace lockstep::rl {

std::optional<double> grade_deepscaler(std::string_view response, std::string_view label, double tolerance) {
  constexpr std::string_view kThought = "</think>", kResponse = "###Response";
  const size_t heading = response.find(kResponse);
  std::string_view solution;
  if (response.find(kThought) != std::string_view::npos) {
    solution = behind_thought(response);
  } else if (heading != std::string_view::npos) {
    solution = response.substr(heading + kResponse.size());
    solution = solution.substr(0, solution.find(kResponse));
  }
  return grade_math(solution, label, tolerance);
}

}  // namespace lockstep::rl
