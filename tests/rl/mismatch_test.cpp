#include "rl/mismatch.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::rl {
namespace {

TEST(Mismatch, IsOverTheRowsThatLearn) {
  const train::Datum datum{.weights = {0, 1, 1, 0.5F},
                           .sampled_logprobs = {-9, -1, -2, -0.5F},
                           .policy_logprobs = {0, -1.5F, -1.75F, -0.5F}};
  const Mismatch found = measure_mismatch({&datum, 1});
  EXPECT_NEAR(found.mean, 0.75 / 3, 1e-12);
  EXPECT_NEAR(found.max, 0.5, 1e-12);
  EXPECT_NEAR(found.k3, ((std::exp(-0.5) - 1 + 0.5) + (std::exp(0.25) - 1 - 0.25)) / 3, 1e-12);
  EXPECT_EQ(measure_mismatch({}).mean, 0);
}

TEST(MeasureLogprobs, WeighsAsTheLossDoes) {
  const std::vector<train::Datum> datums = {{.weights = {0, 1, 1}, .sampled_logprobs = {-9, -1, -2}},
                                            {.weights = {2, 0, 0}, .sampled_logprobs = {-1, 0, 0}},
                                            {.weights = {0, 0, 0}, .sampled_logprobs = {0, 0, 0}}};
  const std::vector<std::vector<float>> now = {{0, -1.5F, -2}, {-2, 7, 7}, {5, 5, 5}};
  const LogprobDifference of_samples = measure_logprobs(datums, now, false);
  EXPECT_NEAR(of_samples.mean, (0.25 + 1) / 2, 1e-12) << "the third learns nothing";
  EXPECT_NEAR(of_samples.max, 1, 1e-12);
  EXPECT_NEAR(measure_logprobs(datums, now, true).mean, (0.5 + 2) / 4, 1e-12);
}

}  // namespace
}  // namespace lockstep::rl
