// The stages between trajectories and optimizer steps.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "rl/advantage.h"
#include "rl/batch.h"
#include "rl/policy_logprobs.h"
#include "rl/reference.h"
#include "rl/reward_shaping.h"
#include "train/tiny.h"

namespace lockstep::rl {
namespace {

train::Datum datum_of(std::vector<float> weights, std::vector<float> policy, std::vector<float> reference) {
  train::Datum datum;
  datum.tokens.assign(weights.size(), 1);
  for (const float weight : weights) datum.targets.push_back(weight != 0 ? 1 : -1);
  datum.weights = std::move(weights);
  datum.policy_logprobs = std::move(policy);
  datum.ref_logprobs = std::move(reference);
  return datum;
}

// Differences policy - reference of the rows that count: 0.5, -0.25; 1, 2, -0.5.
std::vector<train::Datum> two_datums() {
  return {datum_of({0, 1, 1}, {7, -1, -1}, {-9, -1.5f, -0.75f}), datum_of({1, 1, 1}, {-1, -1, -1}, {-2, -3, -0.5f})};
}

double low_var(double k1) {
  return std::exp(-k1) - 1 + k1;
}

TEST(RewardShaping, TakesTheKlOfTheWholeSampleOffItsReward) {
  const std::vector<float> rewards = {1, 0.25f};
  const std::vector<train::Datum> datums = two_datums();
  const std::vector<float> k1 = shape_rewards(rewards, datums, {.kl_coef = 0.1, .kl_type = train::KlType::k1});
  EXPECT_FLOAT_EQ(k1[0], static_cast<float>(1 - 0.1 * (0.5 - 0.25)));
  EXPECT_FLOAT_EQ(k1[1], static_cast<float>(0.25 - 0.1 * (1 + 2 - 0.5)));
  const std::vector<float> k2 = shape_rewards(rewards, datums, {.kl_coef = 2, .kl_type = train::KlType::k2});
  EXPECT_FLOAT_EQ(k2[0], static_cast<float>(1 - 2 * 0.5 * (0.25 + 0.0625)));
  const std::vector<float> low = shape_rewards(rewards, datums, {.kl_coef = 0.5});
  EXPECT_FLOAT_EQ(low[1], static_cast<float>(0.25 - 0.5 * (low_var(1) + low_var(2) + low_var(-0.5))));
  EXPECT_EQ(shape_rewards(rewards, datums, {}), rewards);
}

// Its reward is in the baseline of its group, where the others have lost their KL.
TEST(RewardShaping, AMaskedSampleLosesItsKlAsWell) {
  std::vector<train::Datum> datums = two_datums();
  datums[1].weights.assign(3, 0.0f);
  const std::vector<float> k1 =
      shape_rewards(std::vector<float>{1, 0.25f}, datums, {.kl_coef = 0.1, .kl_type = train::KlType::k1});
  EXPECT_FLOAT_EQ(k1[1], static_cast<float>(0.25 - 0.1 * (1 + 2 - 0.5)));
}

TEST(RewardShaping, WithoutKlNoReferenceIsRead) {
  std::vector<train::Datum> datums = two_datums();
  for (train::Datum& datum : datums) datum.ref_logprobs.clear();
  EXPECT_EQ(shape_rewards(std::vector<float>{3, 4}, datums, {}), (std::vector<float>{3, 4}));
}

TEST(Advantages, AreOfGroupsThatLieSideBySide) {
  std::vector<Trajectory> trajectories(5);
  const std::vector<int64_t> groups = {4, 4, 4, 9, 9};
  std::vector<train::Datum> datums(5);
  for (size_t i = 0; i < 5; ++i) {
    trajectories[i].group = groups[i];
    trajectories[i].reward = 9.0f;
    datums[i].tokens.assign(i + 1, 0);
  }
  const std::vector<float> rewards = {1, 0, 0.5f, 2, 1};
  set_advantages(datums, trajectories, rewards, {});
  const std::vector<float> first = group_advantages(std::span(rewards).first(3), {}),
                           second = group_advantages(std::span(rewards).last(2), {});
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(datums[i].advantages, std::vector<float>(i + 1, i < 3 ? first[i] : second[i - 3])) << i;
  EXPECT_GT(first[0], 0);
  EXPECT_LT(second[1], 0);
}

TEST(Advantages, UnknownRewardsLeaveTheBaseline) {
  std::vector<Trajectory> trajectories(4);
  std::vector<train::Datum> datums(4);
  for (size_t i = 0; i < 4; ++i) {
    datums[i].tokens.assign(2, 0);
    if (i != 1) trajectories[i].reward = 9.0f;
  }
  set_advantages(datums, trajectories, std::vector<float>{1, 1e6f, 0, 0.5f}, {});
  const std::vector<float> others = group_advantages(std::vector<float>{1, 0, 0.5f}, {});
  EXPECT_EQ(datums[0].advantages[0], others[0]);
  EXPECT_EQ(datums[1].advantages, (std::vector<float>{0, 0}));
  EXPECT_EQ(datums[2].advantages[0], others[1]);
  EXPECT_EQ(datums[3].advantages[0], others[2]);
}

TEST(Reference, TheKlIsAveragedAsTheLossIs) {
  const double first = low_var(0.5) + low_var(-0.25), second = low_var(1) + low_var(2) + low_var(-0.5);
  EXPECT_NEAR(*mean_kl(two_datums(), false), (first / 2 + second / 3) / 2, 1e-12);
  EXPECT_NEAR(*mean_kl(two_datums(), true), (first + second) / 5, 1e-12);
  std::vector<train::Datum> datums = two_datums();
  datums[0].weights.assign(3, 0.0f);
  EXPECT_NEAR(*mean_kl(datums, false), second / 3, 1e-12) << "only of what is learned from";
  datums[1].weights.assign(3, 0.0f);
  EXPECT_EQ(mean_kl(datums, false), std::nullopt);
}

class Logprobs : public ::testing::Test {
 protected:
  Stream stream_{{.threads = 1}};
  const train::testing::Tiny tiny_ = train::testing::make_tiny(stream_);
  train::Trainer trainer_{tiny_.model, tiny_.layout, tiny_.weights, {.max_tokens = 30, .temperature = 0.7f}, stream_};
  std::vector<train::Datum> datums_ = train::testing::make_batch(6, 1);
};

TEST_F(Logprobs, OfAnExactSamplerAreThePolicys) {
  for (train::Datum& datum : datums_) datum.policy_logprobs.clear();
  set_policy_logprobs(datums_, trainer_, {.exact_logprobs = true}, [](int64_t) { FAIL() << "a forward ran"; });
  for (const train::Datum& datum : datums_) EXPECT_EQ(datum.policy_logprobs, datum.sampled_logprobs);
}

TEST_F(Logprobs, OfAnotherSamplerAreComputedUnderTheCurrentWeights) {
  train::testing::take_step(trainer_, datums_, train::PolicyLoss{}, 1e-2);
  const std::vector<train::Datum> before = datums_;
  std::vector<int64_t> heard;
  set_policy_logprobs(datums_, trainer_, {}, [&](int64_t done) { heard.push_back(done); });
  const lora::AdapterVersion now = trainer_.adapter();
  const auto wanted = trainer_.logprobs(before, &now);
  for (size_t i = 0; i < datums_.size(); ++i) {
    EXPECT_EQ(datums_[i].policy_logprobs, wanted[i]);
    EXPECT_NE(datums_[i].policy_logprobs, before[i].policy_logprobs);
    EXPECT_EQ(datums_[i].sampled_logprobs, before[i].sampled_logprobs);
  }
  EXPECT_GT(heard.size(), 1u);
  EXPECT_EQ(heard.back(), 6);
}

TEST_F(Logprobs, OfASamplerThatReportsAnotherDistributionsAreNotRead) {
  const std::vector<train::Datum> before = datums_;
  set_policy_logprobs(datums_, trainer_, {.policys_logprobs = false});
  for (size_t i = 0; i < datums_.size(); ++i) {
    EXPECT_NE(datums_[i].policy_logprobs, before[i].sampled_logprobs);
    EXPECT_EQ(datums_[i].sampled_logprobs, datums_[i].policy_logprobs);
  }
}

TEST_F(Logprobs, OfTheReferenceAreThoseOfTheBase) {
  set_ref_logprobs(datums_, trainer_);
  const auto wanted = trainer_.logprobs(datums_, nullptr);
  for (size_t i = 0; i < datums_.size(); ++i) EXPECT_EQ(datums_[i].ref_logprobs, wanted[i]);
  std::vector<train::Datum> others = train::testing::make_batch(6, 2);
  const std::vector<train::Datum> before = others;
  const auto interrupt = [](int64_t) { throw Cancelled({.what = "now"}); };
  EXPECT_THROW(set_ref_logprobs(others, trainer_, interrupt), Cancelled);
  EXPECT_EQ(others[0].ref_logprobs, before[0].ref_logprobs);
}

}  // namespace
}  // namespace lockstep::rl
