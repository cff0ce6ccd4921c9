#include "recipes/reward/exact.h"

#include "recipes/reward/extract.h"

namespace lockstep::recipes {

float grade_exact(std::string_view response, std::string_view label) {
  return trimmed(response) == trimmed(label) ? 1.0f : 0.0f;
}

}  // namespace lockstep::recipes
