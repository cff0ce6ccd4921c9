// Samples that were there before, and samples that several versions of the policy drew.
#include <set>

#include "rl/batch.h"
#include "rl/groups_in_flight.h"
#include "rl/loop_world.h"

namespace lockstep::rl {
namespace {

// What a checkpoint of a run keeps of rollouts under way.
TEST(RlLoop, WhatWasGradedBeforeIsNeitherDrawnNorGradedAgain) {
  World whole, first;
  const Rollout wanted = whole.roll(0);
  GradedSamples graded;
  first.parts.graded = &graded;
  expect_same(first.roll(0), wanted);
  const auto all = graded.all();
  ASSERT_EQ(all.size(), 16u);
  for (const size_t kept : {16u, 5u, 1u}) {
    World again;
    GradedSamples some;
    for (auto sample = all.begin(); some.all().size() < kept; ++sample) some.add(sample->first, sample->second);
    again.parts.graded = &some;
    const Rollout rollout = again.roll(0);
    expect_same(rollout, wanted);
    EXPECT_EQ(rollout.report.reward, wanted.report.reward);
    EXPECT_EQ(again.reward.submitted.size(), 16 - kept);
    EXPECT_EQ(some.all().size(), 16u);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(rollout.trajectories[i].group, wanted.trajectories[i].group);
      EXPECT_EQ(rollout.trajectories[i].index, wanted.trajectories[i].index);
    }
  }
  World other;  // those of another rollout, or of another version, do not count
  other.parts.graded = &graded;
  other.roll(1);
  EXPECT_EQ(other.reward.submitted.size(), 16u);
  other.learn(other.roll(0));
  other.reward.submitted.clear();
  other.roll(0);
  EXPECT_EQ(other.reward.submitted.size(), 16u);
  graded.forget_before(1);
  for (const auto& [key, sample] : graded.all()) EXPECT_EQ(key.rollout, 1u);
}

TEST(RlLoop, AGroupThatIsJudgedTogetherIsKeptAsAWhole) {
  World first, again;
  GradedSamples graded, some;
  first.parts.graded = &graded;
  const Rollout wanted = first.roll(0);
  for (const auto& [key, sample] : graded.all())
    if (some.all().size() < 6) some.add(key, sample);  // a group and a half
  again.parts.graded = &some;
  again.reward.groups = true;
  expect_same(again.roll(0), wanted);
  EXPECT_EQ(again.reward.submitted.size(), 12u);
}

// Samples under way go on with each new version, and the trainer computes the same bits under the versions that drew
// them.
TEST(RlLoop, AnInterruptedSampleIsRecomputedVersionByVersion) {
  World world;
  world.store.set_keep(lora::kActor, 8);
  const Rollout one = world.roll(0);
  std::vector<FinishedGroup> finished;
  {
    const RolloutRequest request = world.request(3);
    GroupsInFlight flight(world.engine, world.reward, request.params, true, nullptr);
    for (uint32_t i = 0; i < 4; ++i)
      flight.submit({.number = i, .prompt = i, .asked = request.prompts[i], .row = std::make_shared<RewardRow>()},
                    world.actor);
    EXPECT_EQ(flight.requests().size(), 4u);
    for (int version = 0; flight.size() > 0; ++version) {
      for (int step = 0; step < 6; ++step)
        for (FinishedGroup& group : flight.wait(rollout::kAtOnce)) finished.push_back(std::move(group));
      if (version < 4) world.learn(one);
    }
  }
  ASSERT_EQ(finished.size(), 4u);
  std::vector<Trajectory> trajectories;
  std::set<int64_t> versions;
  for (const FinishedGroup& group : finished)
    for (Trajectory& trajectory : trajectories_of(group, 0, {})) {
      for (size_t t = 0; t < trajectory.mask.size(); ++t)
        if (trajectory.mask[t] != 0) versions.insert(trajectory.versions[t]);
      trajectories.push_back(std::move(trajectory));
    }
  EXPECT_GE(versions.size(), 4u);
  const std::vector<train::Datum> datums = make_datums(trajectories);
  const VersionOf version_of = [&](int64_t version) { return world.store.pin(lora::kActor, version).version(); };
  const auto logprobs = logprobs_by_version(world.trainer, datums, trajectories, version_of);
  ASSERT_EQ(logprobs.size(), datums.size());
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].weights.size(); ++t)
      if (datums[i].weights[t] != 0) {
        ASSERT_EQ(logprobs[i][t], datums[i].sampled_logprobs[t]) << i << " " << t;
      }
  EXPECT_TRUE(logprobs_by_version(world.trainer, datums, trajectories, [](int64_t) { return nullptr; }).empty());
  // One version does not explain them.
  const lora::AdapterVersion newest = world.trainer.adapter();
  const auto wrong = world.trainer.logprobs(datums, &newest);
  EXPECT_NE(wrong, logprobs);
}

// The decoupled loss: old log-probs of the trainer, whose distance from those of the drawing version a correction
// weighs.
TEST(RlLoop, TheProximalPolicyIsTheTrainers) {
  World world;
  const Rollout first = world.roll(0), second = world.roll(1);
  world.learn(first);
  TrainPlan plan{.batch_size = 16, .schedule = {.lr = 1e-2}};
  World same;
  same.roll(0), same.roll(1), same.learn(first);
  EXPECT_EQ(rl_train(same.parts, grpo(), second, plan).mismatch.max, 0);
  plan.decoupled = true;
  Algorithm decoupled = grpo();
  decoupled.correction.rules = {{.action = CorrectionAction::mask, .low = 0, .high = 5}};
  const TrainReport report = rl_train(world.parts, decoupled, second, plan);
  EXPECT_GT(report.mismatch.max, 0);
  EXPECT_NE(report.correction.mean_weight, 1);
  EXPECT_EQ(report.policy_kl, 0) << "the only step begins at the proximal policy";
}

}  // namespace
}  // namespace lockstep::rl
