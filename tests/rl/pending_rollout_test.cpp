// Rollouts that are in flight at once: one is collected while the others are drawn and graded beside it.
#include "rl/pending_rollout.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"
#include "rl/loop_world.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

using Beside = std::vector<std::unique_ptr<PendingRollout>>;

Beside pending(World& world, std::initializer_list<uint32_t> numbers) {
  Beside rollouts;
  for (const uint32_t number : numbers) rollouts.push_back(rl_submit(world.parts, world.request(number)));
  return rollouts;
}

// Has no verdict before it was asked for so many.
class SlowReward : public ByTokens {
 public:
  explicit SlowReward(size_t samples) : samples_(samples) {}
  std::vector<Graded> poll(Deadline deadline) override {
    if (submitted.size() >= samples_) return ByTokens::poll(deadline);
    std::this_thread::sleep_until(std::min(deadline, std::chrono::steady_clock::now() + std::chrono::milliseconds(1)));
    while (std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return {};
  }

 private:
  const size_t samples_;
};

TEST(PendingRollout, StepsOfTheEngineAreShared) {
  World apart, together;
  const Rollout first = apart.roll(0), second = apart.roll(1);
  Beside rollouts = pending(together, {0, 1});
  std::unique_ptr<PendingRollout> one = std::move(rollouts.front());
  rollouts.erase(rollouts.begin());
  int64_t most = 0;
  const Watch watch{.progress = [&](int64_t, int64_t) {
    most = std::max(most, together.engine.load().running + together.engine.load().waiting);
  }};
  expect_same(rl_collect(together.parts, std::move(one), rollouts, watch), first);
  EXPECT_GT(most, 16) << "samples of both";
  EXPECT_GT(rollouts[0]->samples_drawn(), 0);
  EXPECT_GT(together.reward.submitted.size(), 16u) << "and they are graded as they finish";
  expect_same(rl_collect(together.parts, std::move(rollouts[0])), second);
  EXPECT_LT(together.engine.stats().steps, apart.engine.stats().steps * 3 / 4);
}

TEST(PendingRollout, WhileOneWaitsForItsRewardsTheOthersAreDrawn) {
  World in_turn, world;
  const Rollout first = in_turn.roll(0), second = in_turn.roll(1);
  SlowReward slow(32);  // first all samples of both rollouts have to be there
  RlParts parts{world.engine, world.trainer, slow, world.store};
  Beside rollouts;
  for (const uint32_t number : {0, 1}) rollouts.push_back(rl_submit(parts, world.request(number)));
  std::unique_ptr<PendingRollout> one = std::move(rollouts.front());
  rollouts.erase(rollouts.begin());
  int64_t questions = 0;
  const Watch patience{.interrupted = [&] { return ++questions > 1000; }};
  expect_same(rl_collect(parts, std::move(one), rollouts, patience), first);
  EXPECT_TRUE(rollouts[0]->drawn());
  expect_same(rl_collect(parts, std::move(rollouts[0]), {}, patience), second);
}

TEST(PendingRollout, AFailureOfOneLeavesTheOthers) {
  World in_turn, world;
  in_turn.roll(0);
  const Rollout wanted = in_turn.roll(1);
  world.reward.fails = [](const RewardSample& sample) { return sample.rollout == 0; };
  RolloutRequest strict = world.request(0);
  strict.on_reward_failure = RewardFailure::stop;
  std::unique_ptr<PendingRollout> one = rl_submit(world.parts, std::move(strict));
  Beside two = pending(world, {1});
  EXPECT_THROW(rl_collect(world.parts, std::move(one), two), DataError);
  EXPECT_FALSE(world.engine.idle());
  expect_same(rl_collect(world.parts, std::move(two[0])), wanted);
  EXPECT_TRUE(world.engine.idle());
}

// Its error is its own: the one that is collected goes on, also while it waits for its rewards and nothing is drawn.
TEST(PendingRollout, AFailureBesideIsSaidWhenItIsCollected) {
  class Late : public ByTokens {
   public:
    std::vector<Graded> poll(Deadline deadline) override {
      if (submitted.size() == 16 && ++polls_ >= 5) return ByTokens::poll(deadline);
      std::this_thread::sleep_until(deadline);
      return {};
    }

   private:
    int polls_ = 0;
  };
  World in_turn, world;
  const Rollout wanted = in_turn.roll(0);
  Late late;
  RlParts parts{world.engine, world.trainer, late, world.store};
  const RolloutRequest request = world.request(0);
  std::unique_ptr<PendingRollout> one = rl_submit(parts, request);
  Beside two;
  two.push_back(rl_submit(parts, world.request(1)));
  const auto prompts = static_cast<rollout::Ticket>(request.prompts.size());
  std::vector<rollout::Ticket> failed;
  for (rollout::Ticket ticket = 0; ticket < 4 * prompts; ++ticket)
    if (two[0]->take({ticket, rollout::Failed{std::make_exception_ptr(DataError({.what = "its own"}))}}))
      failed.push_back(ticket);
  ASSERT_EQ(static_cast<rollout::Ticket>(failed.size()), prompts);
  for (const rollout::Ticket ticket : failed) world.engine.cancel(ticket);
  expect_same(rl_collect(parts, std::move(one), two), wanted);
  lockstep::testing::expect_error<DataError>([&] { rl_collect(parts, std::move(two[0])); }, {"its own"});
}

TEST(PendingRollout, WhatIsForgottenIsInFlightNowhere) {
  World world;
  Beside rollouts = pending(world, {0, 1, 2});
  const Watch third{.interrupted = [questions = 0]() mutable { return ++questions == 3; }};
  std::unique_ptr<PendingRollout> one = std::move(rollouts.front());
  rollouts.erase(rollouts.begin());
  EXPECT_THROW(rl_collect(world.parts, std::move(one), rollouts, third), Cancelled);
  EXPECT_FALSE(world.engine.idle());
  rollouts.clear();
  EXPECT_TRUE(world.engine.idle());
  EXPECT_TRUE(world.reward.poll({}).empty());
}

// An evaluation: it draws and grades samples of its own in between.
TEST(PendingRollout, OthersMayUseSamplerAndRewardInBetween) {
  World in_turn, world;
  const Rollout first = in_turn.roll(0), second = in_turn.roll(1), third = in_turn.roll(2);
  Beside rollouts = pending(world, {0, 1});
  std::unique_ptr<PendingRollout> one = std::move(rollouts.front());
  rollouts.erase(rollouts.begin());
  expect_same(rl_collect(world.parts, std::move(one), rollouts), first);
  rl_finish_grading(world.parts, rollouts, {});
  EXPECT_FALSE(rollouts[0]->grading());
  const RolloutRequest others = world.request(2);
  const auto samples = rollout::sample_groups(world.engine, others.prompts, others.params, others.policy);
  std::vector<RewardSample> judged;
  for (size_t i = 0; i < samples.size(); ++i)
    judged.push_back({.row = std::make_shared<RewardRow>(), .tokens = samples[i].tokens});
  const std::vector<Score> scores = grade_all(world.reward, std::move(judged), 1);
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].value, third.trajectories[i].reward) << i;
  world.engine.release_memory();
  expect_same(rl_collect(world.parts, std::move(rollouts[0])), second);
}

TEST(PendingRollout, GreedySamplesAreGradedBesideTheOthers) {
  World in_turn, world;
  const auto request = [](World& of, uint32_t number) {
    RolloutRequest asked = of.request(number);
    asked.greedy_baseline = true;
    return asked;
  };
  const Rollout first = rl_collect(in_turn.parts, rl_submit(in_turn.parts, request(in_turn, 0)));
  const Rollout second = rl_collect(in_turn.parts, rl_submit(in_turn.parts, request(in_turn, 1)));
  std::unique_ptr<PendingRollout> one = rl_submit(world.parts, request(world, 0));
  Beside two;
  two.push_back(rl_submit(world.parts, request(world, 1)));
  const Rollout same = rl_collect(world.parts, std::move(one), two);
  expect_same(same, first);
  const Rollout same_second = rl_collect(world.parts, std::move(two[0]));
  expect_same(same_second, second);
  bool differ = false;
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(same.trajectories[i].baseline, first.trajectories[i].baseline);
    EXPECT_EQ(same_second.trajectories[i].baseline, second.trajectories[i].baseline);
    differ = differ || first.trajectories[i].baseline != first.trajectories[0].baseline;
  }
  EXPECT_TRUE(differ);
}

}  // namespace
}  // namespace lockstep::rl
