#include "recipes/second_trainers.h"

#include <algorithm>

#include "recipes/critic.h"

namespace lockstep::recipes {

namespace {

constexpr const SecondTrainerKind* kKinds[] = {&kCritic};

}  // namespace

std::vector<const SecondTrainerKind*> second_trainers(const RlOptions& options) {
  std::vector<const SecondTrainerKind*> asked;
  for (const SecondTrainerKind* kind : kKinds)
    if (kind->is_asked_for(options)) asked.push_back(kind);
  return asked;
}

int64_t rollouts_without_actor(const RlOptions& options, int64_t rollouts) {
  int64_t alone = 0;
  for (const SecondTrainerKind* kind : second_trainers(options)) alone = std::max(alone, kind->rollouts_alone(options));
  return std::min(alone, rollouts);
}

}  // namespace lockstep::recipes
