// GAE and the value loss against tools/golden/ppo_cases.py, which writes them from their formulas in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "rl/advantage.h"
#include "rl/advantage/gae.h"
#include "support/temp_directory.h"
#include "train/loss.h"
#include "train/reduction.h"

namespace lockstep::rl {
namespace {

constexpr double kTolerance = 1e-6;

const Json& golden() {
  static const Json cases = read_json(LOCKSTEP_SOURCE_DIR "/tests/golden/rl/ppo.json");
  return cases;
}

struct Batch {
  std::vector<Trajectory> trajectories;
  std::vector<float> rewards, value;  // value: rows of all samples back to back
  std::vector<train::Datum> datums;
};

Batch make_batch() {
  Batch batch;
  for (const Json& sample : golden().at("rollout")) {
    const auto floats = [&](const char* name) { return sample.at(name).get<std::vector<float>>(); };
    Trajectory trajectory;
    trajectory.group = sample.at("group");
    trajectory.reward = sample.at("reward").get<float>();
    trajectory.truncated = sample.at("truncated");
    batch.rewards.push_back(*trajectory.reward);
    batch.trajectories.push_back(std::move(trajectory));
    train::Datum datum;
    datum.weights = floats("weights");
    datum.tokens.assign(datum.weights.size(), 1);
    for (const float weight : datum.weights) datum.targets.push_back(weight > 0 ? 2 : -1);
    datum.policy_logprobs = floats("policy_logprobs");
    datum.ref_logprobs = floats("ref_logprobs");
    datum.values = floats("values");
    datum.returns = floats("returns");
    for (const float value : floats("value")) batch.value.push_back(value);
    batch.datums.push_back(std::move(datum));
  }
  return batch;
}

AdvantageOptions options_of(const Json& wanted) {
  return {.estimator = Estimator::ppo,
          .gamma = wanted.at("gamma"),
          .lambda = wanted.at("lambda"),
          .whiten = wanted.at("whiten")};
}

RewardShaping shaping_of(const Json& wanted) {
  return {.kl_coef = wanted.at("kl_coef"), .kl_type = train::KlType::k1};
}

TEST(Ppo, AdvantagesAndReturnsAreThoseOfTheFormulas) {
  EXPECT_EQ(golden().at("gae").size(), 6u);
  for (const Json& wanted : golden().at("gae")) {
    Batch batch = make_batch();
    set_advantages(batch.datums, batch.trajectories, batch.rewards, options_of(wanted), shaping_of(wanted));
    for (size_t i = 0; i < batch.datums.size(); ++i)
      for (size_t t = 0; t < batch.datums[i].weights.size(); ++t) {
        EXPECT_NEAR(batch.datums[i].advantages[t], wanted.at("advantages")[i][t].get<double>(), kTolerance)
            << wanted.at("gamma") << ", sample " << i << ", row " << t;
        EXPECT_NEAR(batch.datums[i].returns[t], wanted.at("returns")[i][t].get<double>(), kTolerance)
            << wanted.at("gamma") << ", sample " << i << ", row " << t;
      }
    EXPECT_NEAR(explained_variance(batch.datums), wanted.at("explained_variance").get<double>(), kTolerance);
  }
}

// No sample knows of another one, but for whitening.
TEST(Ppo, AdvantagesDoNotDependOnTheOtherSamples) {
  Batch together = make_batch();
  const AdvantageOptions how{.estimator = Estimator::ppo, .gamma = 0.9, .lambda = 0.95};
  set_advantages(together.datums, together.trajectories, together.rewards, how);
  for (size_t i = 0; i < together.datums.size(); ++i) {
    Batch alone = make_batch();
    set_advantages(std::span(alone.datums).subspan(i, 1), std::span(alone.trajectories).subspan(i, 1),
                   std::span(alone.rewards).subspan(i, 1), how);
    EXPECT_EQ(alone.datums[i].advantages, together.datums[i].advantages);
    EXPECT_EQ(alone.datums[i].returns, together.datums[i].returns);
  }
}

TEST(Ppo, AnUnknownRewardTeachesNothing) {
  Batch batch = make_batch();
  batch.trajectories[1].reward.reset();
  batch.rewards[1] = NAN;
  set_advantages(batch.datums, batch.trajectories, batch.rewards, {.estimator = Estimator::ppo});
  for (size_t t = 0; t < batch.datums[1].weights.size(); ++t) {
    EXPECT_EQ(batch.datums[1].advantages[t], 0);
    EXPECT_EQ(batch.datums[1].returns[t], 0);
  }
  EXPECT_NE(batch.datums[0].returns[2], 0);
}

TEST(Ppo, WhatIsMissingIsNamed) {
  using lockstep::testing::expect_error;
  const auto advantages = [](auto change) {
    Batch batch = make_batch();
    change(batch);
    set_advantages(batch.datums, batch.trajectories, batch.rewards, {.estimator = Estimator::ppo});
  };
  expect_error<DataError>([&] { advantages([](Batch& b) { b.datums[2].values.clear(); }); }, {"no values of a critic"});
  expect_error<DataError>([&] { advantages([](Batch& b) { b.datums[2].values[3] = NAN; }); }, {"row 3", "not finite"});
  expect_error<DataError>([&] { advantages([](Batch& b) { b.rewards[2] = INFINITY; }); }, {"a reward is not a number"});
}

train::LossScale scale_of(const Json& wanted, const Batch& batch) {
  const std::string name = wanted.at("reduction");
  train::Reduction reduction;
  if (name == "token-mean") reduction.kind = train::ReductionKind::token_mean;
  if (name == "seq-mean-token-sum-norm") reduction = {train::ReductionKind::fixed_length, 16};
  const auto samples = static_cast<int64_t>(batch.datums.size());
  train::LossScale scale{.num_samples = samples,
                         .weight_total = 0,
                         .per_token = reduction.per_token(),
                         .divisor = reduction.divisor(samples)};
  for (const train::Datum& datum : batch.datums) scale.weight_total += datum.weight_sum();
  return scale;
}

TEST(Ppo, ValueLossesAndGradientsAreThoseOfTheFormulas) {
  EXPECT_EQ(golden().at("losses").size(), 9u);
  for (const Json& wanted : golden().at("losses")) {
    const Batch batch = make_batch();
    std::vector<float> d_value(batch.value.size());
    const train::LossOutput output =
        train::evaluate_loss(train::ValueLoss{.clip = wanted.at("clip")}, scale_of(wanted, batch), batch.datums,
                             batch.value, {}, d_value, {});
    const std::string name = wanted.at("reduction").get<std::string>() + " " + wanted.at("clip").dump();
    EXPECT_NEAR(output.loss, wanted.at("loss").get<double>(), kTolerance) << name;
    EXPECT_NEAR(output.metrics.clip_fraction, wanted.at("clip_fraction").get<double>(), kTolerance) << name;
    for (size_t i = 0; i < d_value.size(); ++i)
      EXPECT_NEAR(d_value[i], wanted.at("d_value")[i].get<double>(), kTolerance) << name << ", row " << i;
  }
}

}  // namespace
}  // namespace lockstep::rl
