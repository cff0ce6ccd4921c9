// Samples that were drawn and graded for rollouts that are not trained on yet: whoever samples the rollout again asks
// neither the sampler nor the reward for them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "rl/reward.h"
#include "rollout/sample_groups.h"

namespace lockstep::rl {

// The counter that a sample is drawn with, but for the position of the token.
struct SampleKey {
  uint32_t rollout = 0, row = 0;
  int64_t sample = 0;  // first_sample + index

  auto operator<=>(const SampleKey&) const = default;
};

// Without its place in a rollout, which those who ask know.
struct GradedSample {
  rollout::Sample sample;
  Score score;
};

// Any thread. One thread samples a rollout, another may take all() for a checkpoint meanwhile.
class GradedSamples {
 public:
  void add(const SampleKey& key, GradedSample sample);
  // A sample all of whose tokens this version drew; else nothing.
  std::optional<GradedSample> find(const SampleKey& key, int64_t version) const;
  void forget_before(int64_t rollout);  // what was trained on
  std::map<SampleKey, GradedSample> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<SampleKey, GradedSample> samples_;
};

}  // namespace lockstep::rl
