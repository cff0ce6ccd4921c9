// rl_submit, rl_collect and rl_train with an engine and a trainer: in turn, overlapping, interrupted.
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "rl/loop_world.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

TEST(RlLoop, ReportsWhatItDid) {
  World world;
  const Rollout rollout = world.roll(0);
  ASSERT_EQ(rollout.trajectories.size(), 16u);
  double reward = 0, length = 0;
  int64_t rows = 0;
  for (const Trajectory& trajectory : rollout.trajectories) {
    reward += trajectory.tokens.back() % 7;
    length += static_cast<double>(trajectory.response_len());
    rows += static_cast<int64_t>(trajectory.tokens.size()) - 1;
  }
  EXPECT_EQ(rollout.report.reward, std::optional(reward / 16));
  EXPECT_EQ(rollout.report.response_len, length / 16);
  EXPECT_EQ(rollout.report.tokens, rows);
  EXPECT_EQ(rollout.report.version, 0);
  const TrainReport report = world.learn(rollout, {.measure_kl = true});
  EXPECT_EQ(report.logprob_diff, 0) << "the first step is taken by the version that sampled";
  EXPECT_GT(report.kl.value(), 0);
  EXPECT_GT(report.entropy, 0);
  EXPECT_EQ(report.lr, 1e-2);
  EXPECT_EQ(report.published.policy, actor(1));
  EXPECT_EQ(world.trainer.steps(), 2);
  EXPECT_EQ(world.roll(1).report.version, 1);
  EXPECT_FALSE(world.learn(world.roll(2)).kl.has_value());
}

// The next rollout is asked for before this one is trained on, and ends afterwards, when its version is held no more.
TEST(RlLoop, ARolloutAndATrainingStepOverlap) {
  World in_turn, overlapping;
  const Rollout first = in_turn.roll(0), second = in_turn.roll(1);  // both by version 0
  in_turn.learn(first);

  const lora::AdapterVersion sampled_by = overlapping.trainer.adapter();
  std::unique_ptr<PendingRollout> one = rl_submit(overlapping.parts, overlapping.request(0));
  std::vector<std::unique_ptr<PendingRollout>> two;
  two.push_back(rl_submit(overlapping.parts, overlapping.request(1)));
  const Rollout one_done = rl_collect(overlapping.parts, std::move(one), two);
  expect_same(one_done, first);
  EXPECT_GT(overlapping.engine.kv_bytes_in_use(), 0) << "the second rollout has begun";
  overlapping.engine.release_memory();
  EXPECT_EQ(overlapping.engine.kv_bytes_in_use(), 0);
  EXPECT_EQ(overlapping.learn(one_done).logprob_diff, 0);
  EXPECT_EQ(overlapping.weights(), in_turn.weights());
  EXPECT_EQ(overlapping.sink.held(), std::vector<lora::PolicyId>{actor(1)});
  const Rollout two_done = rl_collect(overlapping.parts, std::move(two.front()));
  expect_same(two_done, second);
  EXPECT_EQ(two_done.report.version, 0) << "every token says which version chose it";

  // What version 0 said is still what the trainer computes under its weights.
  std::vector<train::Datum> datums;
  for (const Trajectory& trajectory : two_done.trajectories) {
    datums.push_back(train::make_datum(trajectory.tokens, trajectory.mask));
    const auto logprobs = overlapping.trainer.logprobs(std::span(datums).last(1), &sampled_by)[0];
    for (size_t t = 0; t < logprobs.size(); ++t)
      if (trajectory.mask[t + 1] != 0) {
        EXPECT_EQ(logprobs[t], trajectory.sampled_logprobs[t + 1]);
      }
  }
  EXPECT_GT(overlapping.learn(two_done).logprob_diff, 0) << "the trainer has moved on, and says so";
}

TEST(RlLoop, ASamplerThatIsNotExactCostsAForwardAndTheBitsAreTheSame) {
  World exact, inexact;
  const Rollout rollout = exact.roll(0);
  exact.learn(rollout);
  RlParts parts{inexact.inexact, inexact.trainer, inexact.reward, inexact.store};
  const Rollout same = rl_collect(parts, rl_submit(parts, inexact.request(0)));
  expect_same(same, rollout);
  rl_train(parts, grpo(), same, {.batch_size = 8, .schedule = {.lr = 1e-2}});
  EXPECT_EQ(inexact.weights(), exact.weights());
}

TEST(RlLoop, AnInterruptLeavesEverythingAsItWas) {
  World plain, world;
  const Rollout wanted = plain.roll(0);
  plain.learn(wanted);

  int64_t questions = 0;
  const Watch third{.interrupted = [&] { return ++questions == 3; }};
  EXPECT_THROW(rl_collect(world.parts, rl_submit(world.parts, world.request(0)), {}, third), Cancelled);
  EXPECT_TRUE(world.engine.idle());
  const Rollout rollout = world.roll(0);
  expect_same(rollout, wanted);

  const std::vector<float> before = world.weights();
  questions = 0;
  EXPECT_THROW(world.learn(rollout, grpo(), third), Cancelled);
  EXPECT_EQ(world.trainer.steps(), 0);
  EXPECT_EQ(world.weights(), before);
  EXPECT_EQ(world.store.find(lora::kActor)->versions, std::vector<int64_t>{0});

  // Once a step is taken the others follow: nobody is asked any more.
  std::vector<int64_t> heard;
  const Watch late{.progress = [&](int64_t done, int64_t) { heard.push_back(done); },
                   .interrupted = [&] { return !heard.empty() && heard.back() > 8; }};
  world.learn(rollout, grpo(), late);
  EXPECT_EQ(heard.back(), 16);
  EXPECT_EQ(world.weights(), plain.weights());
}

// Nothing was measured: that is no KL of 0, and the coefficient does not follow it.
TEST(RlLoop, WhereNothingIsLearnedThereIsNoKl) {
  World world;
  const Algorithm algorithm{.shaping = {.kl_coef = 0.5}, .kl_control = {.target = 0.1, .horizon = 100}};
  Rollout rollout = world.roll(0);
  EXPECT_NE(world.learn(rollout, algorithm).next.kl_reward, 0.5);
  for (Trajectory& trajectory : rollout.trajectories) trajectory.mask.assign(trajectory.mask.size(), 0.0f);
  const TrainReport masked = world.learn(rollout, algorithm);
  EXPECT_EQ(masked.kl, std::nullopt);
  EXPECT_EQ(masked.next.kl_reward, 0.5);
  rollout = world.roll(1);
  for (Trajectory& trajectory : rollout.trajectories) trajectory.reward.reset();
  const TrainReport unknown = world.learn(rollout, algorithm);
  EXPECT_EQ(unknown.kl, std::nullopt);
  EXPECT_EQ(unknown.next.kl_reward, 0.5);
}

// Of two steps the second has no known reward and is not taken.
TEST(RlLoop, MetricsAreMeansOverTheStepsThatWereTaken) {
  World world, half;
  Rollout rollout = world.roll(0), first = half.roll(0);
  for (size_t i = 8; i < 16; ++i) rollout.trajectories[i].reward.reset();
  first.trajectories.resize(8);
  const TrainReport got = world.learn(rollout), wanted = half.learn(first);
  EXPECT_EQ(got.skipped_steps, 1);
  EXPECT_GT(got.entropy, 0);
  EXPECT_EQ(got.entropy, wanted.entropy);
  EXPECT_EQ(got.ratio, wanted.ratio);
  EXPECT_EQ(got.loss, wanted.loss);
}

// KL in the reward shifts what groups are compared by; the judge's reward stays in the report.
TEST(RlLoop, KlInTheRewardComesBeforeTheAdvantages) {
  World world;
  const Rollout rollout = world.roll(0);
  const auto grad_norm = [&](double kl_coef) {
    World fresh;
    const TrainReport report = rl_train(fresh.parts, {.shaping = {.kl_coef = kl_coef, .kl_type = train::KlType::k1}},
                                        rollout, {.batch_size = 16});
    EXPECT_EQ(report.kl.has_value(), kl_coef != 0);
    return report.grad_norm;
  };
  EXPECT_GT(std::abs(grad_norm(0.5) / grad_norm(0) - 1), 1e-3);
  // Coefficients so large that the judge's rewards do not matter: the KL is normalized, and its scale has no effect.
  EXPECT_NEAR(grad_norm(1e5) / grad_norm(1e4), 1, 1e-2);
}

TEST(RlLoop, ScoringBeginsAsSamplesOrGroupsFinish) {
  World world;
  const Rollout one_by_one = world.roll(0);
  ASSERT_EQ(world.reward.submitted.size(), 16u);
  EXPECT_FALSE(std::ranges::is_sorted(world.reward.submitted)) << "samples end after different numbers of tokens";
  World together;
  together.reward.groups = true;
  expect_same(together.roll(0), one_by_one);
  ASSERT_EQ(together.reward.submitted.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(together.reward.submitted[i].first, together.reward.submitted[i / 4 * 4].first);
    EXPECT_EQ(together.reward.submitted[i].second, static_cast<int64_t>(i % 4));
  }
}

TEST(RlLoop, NothingIsLearnedFromAnUnknownReward) {
  const auto second_of_first = [](const RewardSample& sample) { return sample.group == 0 && sample.index == 1; };
  World world;
  world.reward.fails = second_of_first;
  const Rollout rollout = world.roll(0);
  EXPECT_EQ(rollout.report.reward_unknown, 1);
  EXPECT_EQ(rollout.report.reward_failure, "prompt 0, sample 1: nobody knows");
  EXPECT_FALSE(rollout.trajectories[1].reward.has_value());
  double sum = 0;
  for (const Trajectory& trajectory : rollout.trajectories)
    sum += trajectory.reward ? static_cast<double>(*trajectory.reward) : 0;
  EXPECT_DOUBLE_EQ(rollout.report.reward.value(), sum / 15);
  world.learn(rollout);

  // The tokens of the sample without a reward have no influence on what is learned.
  World other;
  Rollout changed = rollout;
  for (int32_t& token : changed.trajectories[1].tokens) token = (token + 1) % 30;
  other.learn(changed);
  EXPECT_EQ(other.weights(), world.weights());
  // Another reward in its place does.
  World third;
  changed.trajectories[1].reward = 6.0f;
  third.learn(changed);
  EXPECT_NE(third.weights(), world.weights());

  World strict;
  strict.reward.fails = second_of_first;
  RolloutRequest request = strict.request(0);
  request.on_reward_failure = RewardFailure::stop;
  testing::expect_error<DataError>([&] { rl_collect(strict.parts, rl_submit(strict.parts, request)); },
                                   {"unknown", "prompt 0, sample 1", "nobody knows"});
  EXPECT_TRUE(strict.engine.idle());
}

TEST(RlLoop, AStepOfWhichNoRewardIsKnownIsNotTaken) {
  World world;
  world.reward.fails = [](const RewardSample& sample) { return sample.group < 2; };
  const TrainReport report =
      world.learn(world.roll(0), {.reduction = {train::ReductionKind::token_mean}, .measure_kl = true});
  EXPECT_EQ(report.skipped_steps, 1);
  EXPECT_EQ(world.trainer.steps(), 1);
  World none;
  none.reward.fails = [](const RewardSample&) { return true; };
  const std::vector<float> before = none.weights();
  const Rollout rollout = none.roll(0);
  EXPECT_FALSE(rollout.report.reward.has_value());
  const TrainReport without = none.learn(rollout);
  EXPECT_EQ(without.skipped_steps, 2);
  EXPECT_FALSE(without.actor_trained) << "its means are of no step";
  EXPECT_EQ(none.weights(), before);
}

TEST(RlLoop, ARolloutIsCutIntoWholeSteps) {
  World world;
  const Rollout rollout = world.roll(0);
  for (const int64_t batch_size : {0, 5, 32})
    EXPECT_THROW(rl_train(world.parts, grpo(), rollout, {.batch_size = batch_size}), ConfigError) << batch_size;
  EXPECT_EQ(world.trainer.steps(), 0);
}

}  // namespace
}  // namespace lockstep::rl
