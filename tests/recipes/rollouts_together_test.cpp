// Rollouts that are in flight at once are those that are sampled in turn.
#include "recipes/rollouts_together.h"

#include "core/error.h"
#include "recipes/rollout_engine.h"
#include "rl/loop_world.h"

namespace lockstep::recipes {
namespace {

using rl::World;

// Four prompts in two rollouts of two, and again.
struct Sampled : World {
  RlOptions options;
  PromptSet prompts;
  std::optional<RolloutSampling> sampling;

  Sampled() {
    const rl::RolloutRequest asked = request(0);
    options.staleness.max_staleness = 2;
    options.rollout_batch_size = 2;
    options.n_samples = 4;
    options.sampling = asked.params.sampling;
    prompts.prompts = asked.prompts;
    for (size_t i = 0; i < prompts.prompts.size(); ++i) {
      prompts.prompts[i].row = static_cast<uint32_t>(i);
      prompts.rows.push_back(std::make_shared<const rl::RewardRow>());
    }
    store.set_keep(lora::kActor, options.staleness.versions());
    sampling.emplace(options, prompts, std::vector<int32_t>{7}, parts);
  }
  versions::Pin newest() { return store.pin(lora::kActor); }
  SampledRollout in_turn(int64_t rollout) {
    return sampling->sample({.rollout = rollout, .rows_begin = 2 * rollout, .version = newest()}, {});
  }
};

void expect_same(const SampledRollout& got, const SampledRollout& wanted) {
  rl::expect_same(got.rollout, wanted.rollout);
  EXPECT_EQ(got.rows_end, wanted.rows_end);
  EXPECT_EQ(got.gates.prompts_used, wanted.gates.prompts_used);
  EXPECT_EQ(got.gates.group_rewards, wanted.gates.group_rewards);
  EXPECT_EQ(got.rollout.report.reward, wanted.rollout.report.reward);
}

TEST(RolloutsTogether, AreThoseInTurn) {
  Sampled alone, world;
  RolloutsTogether together(3, 6, *world.sampling);
  for (int i = 0; i < 3; ++i) together.begin(world.newest());
  EXPECT_EQ(together.next(), 6);
  const rl::Watch watch{.progress = [&](int64_t, int64_t of) { EXPECT_EQ(of, 8); }};
  expect_same(together.take(watch), alone.in_turn(3));
  EXPECT_GT(world.reward.submitted.size(), 8u) << "of the others, too";
  world.learn(world.roll(9)), alone.learn(alone.roll(9));  // training and others who sample change nothing
  together.begin(world.newest());
  const SampledRollout fourth = together.take({});
  EXPECT_EQ(fourth.version->policy.version, 0);
  expect_same(together.take({}), [&] {
    Sampled before;
    return before.in_turn(5);
  }());
  expect_same(together.take({}), alone.in_turn(6));
  EXPECT_TRUE(world.engine.idle());
}

TEST(RolloutsTogether, AfterAFailureNothingIsInFlightAndAllBeginAgain) {
  Sampled alone, world;
  const SampledRollout first = alone.in_turn(0), second = alone.in_turn(1);
  RolloutsTogether together(0, 0, *world.sampling);
  for (int i = 0; i < 2; ++i) together.begin(world.newest());
  const rl::Watch third{.interrupted = [questions = 0]() mutable { return ++questions == 3; }};
  EXPECT_THROW(together.take(third), Cancelled);
  EXPECT_TRUE(world.engine.idle());
  ASSERT_EQ(together.next(), 0);
  for (int i = 0; i < 2; ++i) together.begin(world.newest());
  expect_same(together.take({}), first);
  expect_same(together.take({}), second);
  together.begin(world.newest());
  world.reward.fails = [](const rl::RewardSample&) -> bool { throw ResourceError({.what = "no judge"}); };
  together.begin(world.newest());
  EXPECT_THROW(together.take({}), ResourceError);
  EXPECT_TRUE(world.engine.idle());
}

TEST(RolloutsTogether, TheirEndForgetsWhatIsInFlight) {
  Sampled world;
  {
    RolloutsTogether together(0, 0, *world.sampling);
    for (int i = 0; i < 3; ++i) together.begin(world.newest());
    EXPECT_FALSE(world.engine.idle());
  }
  EXPECT_TRUE(world.engine.idle());
}

TEST(RolloutsTogether, AheadByTheRuleWithoutGatesInThisProcess) {
  const auto holds = [](const auto& change) {
    RlOptions options;
    options.rollout_batch_size = 4;
    options.staleness.max_staleness = 1;
    change(options);
    EXPECT_EQ(max_sequences(options), sampled_together(options) ? 512 : 256);
    if (const auto plan = engine_plan(options)) {
      EXPECT_EQ(plan->max_sequences, max_sequences(options));
    }
    return sampled_together(options);
  };
  EXPECT_TRUE(holds([](RlOptions&) {}));
  EXPECT_TRUE(holds([](RlOptions& o) { o.staleness = {.max_staleness = 0, .update_interval = 2}; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.staleness = {}; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.need_spread = true; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.on_reward_failure = rl::RewardFailure::drop_group; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.over_sampling = 5; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.async.on = true; }));
  EXPECT_FALSE(holds([](RlOptions& o) { o.engine.kind = rollout::EngineKind::vllm; }));
  EXPECT_EQ(max_sequences(RlOptions{.max_sequences = 7}), 7);
}

}  // namespace
}  // namespace lockstep::recipes
