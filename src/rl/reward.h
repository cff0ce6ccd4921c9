// The port for rewards: a rule, a model or a service that grades samples.
#pragma once

#include <span>
#include <vector>

#include "rl/trajectory.h"

namespace lockstep::rl {

class Reward {
 public:
  Reward() = default;
  virtual ~Reward() = default;
  Reward(const Reward&) = delete;
  Reward& operator=(const Reward&) = delete;

  // One finite number per trajectory, in their order. Their own `reward` is not looked at.
  virtual std::vector<float> grade(std::span<const Trajectory> trajectories) = 0;
};

}  // namespace lockstep::rl
