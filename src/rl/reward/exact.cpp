#include "rl/reward/exact.h"

#include "rl/reward/extract.h"

namespace lockstep::rl {

float grade_exact(std::string_view response, std::string_view label) {
  return trimmed(response) == trimmed(label) ? 1.0f : 0.0f;
}

}  // namespace lockstep::rl
