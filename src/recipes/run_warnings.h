// Warnings about a reinforcement-learning run that has gone wrong: rewards that fall, a policy far from its reference,
// samples that are all alike.
//
// Means are over the last kWindow rollouts.
//   reward collapse    the mean is below half of the best mean so far
//   KL explosion       the KL of a rollout is above 0.1 and above 10 times the median of the kWindow before it
//   entropy collapse   the entropy of a rollout is below a tenth of the mean of the first kWindow
// Each is printed when it begins, and again only after it had ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace lockstep::recipes {

class RunWarnings {
 public:
  static constexpr size_t kWindow = 10;

  struct Rollout {
    std::optional<double> reward;  // of those that are known
    double entropy = 0;
    std::optional<double> kl;  // to the reference
  };
  // The warnings that begin with this rollout.
  std::vector<std::string> add(const Rollout& rollout);

  // For checkpoints. FormatError naming `where`.
  Json json() const;
  static RunWarnings from(const Json& json, const std::string& where);

 private:
  std::vector<double> rewards_, kls_;  // the last kWindow
  std::vector<double> entropies_;      // the first kWindow
  std::optional<double> best_reward_;
  bool reward_low_ = false, kl_high_ = false, entropy_low_ = false;
};

}  // namespace lockstep::recipes
