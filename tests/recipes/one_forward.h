// What both devices' tests of one forward share: samples as a run trains on them, and what is compared.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "rl/batch.h"
#include "rl/policy_logprobs.h"
#include "rollout/sample_groups.h"
#include "train/trainer.h"

namespace lockstep {

inline constexpr float kTemperature = 0.7f;

// The datums that a run would train on, with advantages of both signs.
inline std::vector<train::Datum> datums_of(const std::vector<rollout::Prompt>& prompts,
                                           const std::vector<rollout::Sample>& samples, train::Trainer& trainer) {
  std::vector<rl::Trajectory> trajectories;
  for (const rollout::Sample& sample : samples) {
    trajectories.push_back(rl::make_trajectory(prompts[static_cast<size_t>(sample.prompt)],
                                               std::make_shared<const rl::RewardRow>(), sample, {}));
    trajectories.back().reward = 1.0f;
  }
  std::vector<train::Datum> datums = rl::make_datums(trajectories);
  rl::set_policy_logprobs(datums, trainer, {.exact_logprobs = true});
  for (size_t i = 0; i < datums.size(); ++i)
    datums[i].advantages.assign(datums[i].tokens.size(), samples[i].index % 2 ? 1.0f : -1.0f);
  return datums;
}

// The log-probs that the engine reported are the trainer's, to the last bit.
inline void expect_reported_is_computed(train::Trainer& trainer, const std::vector<train::Datum>& datums,
                                        const std::vector<rollout::Sample>& samples,
                                        const lora::AdapterVersion& adapter) {
  const auto logprobs = trainer.logprobs(datums, &adapter);
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<float>& reported = samples[i].logprobs;
    const float* computed = logprobs[i].data() + (logprobs[i].size() - reported.size());
    EXPECT_EQ(std::memcmp(computed, reported.data(), reported.size() * sizeof(float)), 0) << "sample " << i;
  }
}

}  // namespace lockstep
