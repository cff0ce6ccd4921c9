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

}  // namespace
}  // namespace lockstep::rl
