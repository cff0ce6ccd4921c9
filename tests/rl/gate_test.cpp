// Which groups are trained on, pass rates and coefficients that adapt.
#include "rl/gate.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "core/error.h"
#include "rl/coefficients.h"
#include "rl/pass_rate.h"
#include "rl/pending_rollout.h"
#include "rollout/tiny_model.h"
#include "versions/memory_sink.h"

namespace lockstep::rl {
namespace {

using namespace rollout::testing_models;

std::vector<Trajectory> group_of(const std::vector<std::optional<float>>& rewards) {
  std::vector<Trajectory> group(rewards.size());
  for (size_t i = 0; i < rewards.size(); ++i) group[i].reward = rewards[i];
  return group;
}

TEST(Gate, AGroupHasSpreadWhereKnownRewardsDiffer) {
  EXPECT_TRUE(has_spread(group_of({0.0f, 1.0f})));
  EXPECT_FALSE(has_spread(group_of({0.1f, 0.1f, 0.1f})));
  EXPECT_FALSE(has_spread(group_of({1.0f})));
  EXPECT_FALSE(has_spread(group_of({1.0f, std::nullopt})));
  EXPECT_FALSE(has_spread(group_of({std::nullopt, std::nullopt})));
  EXPECT_TRUE(has_spread(group_of({1.0f, std::nullopt, 0.5f})));
}

TEST(Gate, TruncatedSamplesLearnNothing) {
  std::vector<Trajectory> trajectories(3);
  for (Trajectory& trajectory : trajectories) trajectory.mask = {0, 1, 1};
  trajectories[1].truncated = true;
  EXPECT_EQ(mask_truncated(trajectories), 1);
  EXPECT_EQ(trajectories[0].mask, (std::vector<float>{0, 1, 1}));
  EXPECT_EQ(trajectories[1].mask, (std::vector<float>{0, 0, 0}));
}

// The first sample of some prompts is right.
class BySample : public Reward {
 public:
  Ticket submit(std::vector<RewardSample> samples) override {
    Graded graded{.ticket = next_++};
    for (const RewardSample& sample : samples)
      graded.scores.push_back(sample.row->label == "lost" && sample.index == 1
                                  ? Score::unknown("lost")
                                  : Score::known(sample.row->label == "sometimes" && sample.index == 0 ? 1.0f : 0.0f));
    graded_.push_back(std::move(graded));
    return graded_.back().ticket;
  }
  std::vector<Graded> poll(Deadline /*deadline*/) override { return std::exchange(graded_, {}); }
  void cancel(Ticket /*ticket*/) override {}

 private:
  Ticket next_ = 0;
  std::vector<Graded> graded_;
};

struct World {
  Stream stream{{.threads = 1}};
  const model::ModelSpec config = qwen3_config();
  const std::shared_ptr<const model::Model> model = random_model(config, stream);
  const lora::AdapterVersion start = random_adapter(config, 0, 1);
  train::Trainer trainer{model, start.layout, start.weights, {.max_tokens = 90}, stream};
  rollout::Engine engine{model, {}, stream};
  versions::MemorySink sink{engine.versions()};
  versions::Store store;
  BySample reward;
  RlParts parts{engine, trainer, reward, store};
  std::vector<int64_t> asked;
  int64_t lost = -1;  // a prompt of which one reward is unknown

  World() { store.add(sink); }

  // Of every three prompts the second is solved sometimes.
  GatedRollout run(const GatePlan& plan) {
    return gated_rollout(plan, [&](int64_t first, int64_t count) {
      asked.push_back(count);
      RolloutRequest request{.params = {.sampling = {.max_tokens = 4, .seed = 9}, .n = 2, .rollout = 7}};
      for (int64_t i = first; i < first + count; ++i) {
        request.prompts.push_back({.tokens = {static_cast<int32_t>(i % 50 + 1), 3}, .row = static_cast<uint32_t>(i)});
        request.rows.push_back(std::make_shared<const RewardRow>(RewardRow{.prompt = "",
                                                                           .label = i % 3 == 1  ? "sometimes"
                                                                                    : i == lost ? "lost"
                                                                                                : "never"}));
      }
      return rl_collect(parts, rl_submit(parts, request));
    });
  }
};

TEST(Gate, BatchesFillInTheOrderOfTheirPrompts) {
  World world;
  const GatedRollout gated = world.run({.need_spread = true, .groups = 3, .prompts = 4});
  ASSERT_EQ(gated.rollout.trajectories.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(gated.rollout.trajectories[i].group, static_cast<int64_t>(i / 2));
    EXPECT_EQ(gated.rollout.trajectories[i].row->label, "sometimes");
    EXPECT_EQ(gated.rollout.trajectories[i].tokens[0], static_cast<int32_t>(3 * (i / 2) + 2)) << "prompts 1, 4 and 7";
  }
  EXPECT_EQ(world.asked, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(gated.report.rounds, 2);
  EXPECT_EQ(gated.report.sampled, 8);
  EXPECT_EQ(gated.report.prompts_used, 8);
  EXPECT_EQ(gated.report.dropped, 5);
  EXPECT_EQ(gated.rollout.report.reward, 0.5);
}

TEST(Gate, WhatIsLeftOverBelongsToTheNextRollout) {
  World world;
  const GatedRollout gated = world.run({.need_spread = true, .groups = 1, .prompts = 6});
  EXPECT_EQ(gated.rollout.trajectories.size(), 2u);
  EXPECT_EQ(gated.report.prompts_used, 2);
  EXPECT_EQ(gated.report.sampled, 6);
}

TEST(Gate, WithoutOneARolloutIsOneRound) {
  World world;
  const GatedRollout gated = world.run({.groups = 3, .prompts = 3});
  EXPECT_EQ(gated.report.rounds, 1);
  EXPECT_EQ(gated.report.prompts_used, 3);
  EXPECT_EQ(gated.report.dropped, 0);
  EXPECT_EQ(gated.rollout.trajectories.size(), 6u);
}

TEST(Gate, AGroupWithAnUnknownRewardIsReplacedByTheNextPrompt) {
  World world;
  world.lost = 2;
  const GatedRollout gated = world.run({.need_rewards = true, .groups = 3, .prompts = 3});
  ASSERT_EQ(gated.rollout.trajectories.size(), 6u);
  EXPECT_EQ(gated.rollout.trajectories[4].tokens[0], 4) << "prompt 3 instead of prompt 2";
  EXPECT_EQ(gated.rollout.trajectories[4].group, 2);
  EXPECT_EQ(gated.report.prompts_used, 4);
  EXPECT_EQ(gated.report.dropped, 1);
  EXPECT_EQ(gated.rollout.report.reward_unknown, 1) << "counted, though nothing of it is left";
  EXPECT_EQ(gated.rollout.report.reward_failure, "prompt 2, sample 1: lost");
  World without;
  without.lost = 2;
  EXPECT_EQ(without.run({.groups = 3, .prompts = 3}).report.rounds, 1);
}

TEST(Gate, GivesUpWithTheCounts) {
  World world;
  try {
    world.run({.need_spread = true, .groups = 9, .prompts = 3, .max_rounds = 4});
    FAIL() << "4 of 9 groups are not enough";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("4 of 12 groups in 4 rounds"), std::string::npos) << error.what();
  }
}

TEST(PassRates, AreTheUnbiasedEstimate) {
  // 1 of 4 right, 4 of 4, and one prompt that is not fully known.
  const std::vector<std::optional<float>> rewards = {0, 1, 0, 0, 1, 1, 2, 1, 1, 1, std::nullopt, 1};
  const std::vector<PassRate> rates = pass_rates(rewards, 4);
  ASSERT_EQ(rates.size(), 3u);
  EXPECT_EQ(rates[0].k, 1);
  EXPECT_NEAR(rates[0].rate, (0.25 + 1) / 2, 1e-12);
  EXPECT_EQ(rates[1].k, 2);
  EXPECT_NEAR(rates[1].rate, (0.5 + 1) / 2, 1e-12);  // 1 - C(3, 2) / C(4, 2)
  EXPECT_EQ(rates[2].k, 4);
  EXPECT_NEAR(rates[2].rate, 1, 1e-12);
  EXPECT_EQ(pass_rates(rewards, 3).back().k, 3);
  EXPECT_TRUE(pass_rates(std::vector<std::optional<float>>{std::nullopt}, 1).empty());
}

TEST(Coefficients, FollowTheirTargets) {
  EXPECT_EQ(adapted_kl({}, 0.1, 5, 100), 0.1);
  EXPECT_NEAR(adapted_kl({.target = 0.1, .horizon = 1000}, 0.2, 0.11, 100), 0.2 * (1 + 0.1 * 0.1), 1e-12);
  EXPECT_NEAR(adapted_kl({.target = 0.1, .horizon = 1000}, 0.2, 9, 100), 0.2 * (1 + 0.2 * 0.1), 1e-12);
  EXPECT_NEAR(adapted_kl({.target = 0.1, .horizon = 1000}, 0.2, 0, 100), 0.2 * (1 - 0.2 * 0.1), 1e-12);
  const EntropyControl control{.on = true, .target = 0.5, .low = 0, .high = 0.011};
  EXPECT_NEAR(adapted_entropy(control, 0.005, 0.4), 0.01, 1e-12);
  EXPECT_NEAR(adapted_entropy(control, 0.01, 0.4), 0.011, 1e-12);
  EXPECT_NEAR(adapted_entropy(control, 0.003, 0.6), 0, 1e-12);
}

}  // namespace
}  // namespace lockstep::rl
