// Misuse and bad data: a typed error, and nothing has changed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "train/train_step.h"
#include "trainer_fixture.h"

namespace lockstep::train {
namespace {

using namespace testing;

TEST_F(TrainerTest, AnAbandonedStepLeavesNoTrace) {
  Trainer plain = make(), other = make();
  take_step(plain, make_batch(6, 1), SftLoss{});
  take_step(plain, make_batch(6, 2), SftLoss{});

  take_step(other, make_batch(6, 1), SftLoss{});
  const std::vector<Datum> lost = make_batch(10, 77);
  other.begin_step(plan_of(lost));
  other.forward_backward(std::span(lost).first(7), full_policy_loss());
  other.abandon_step();
  EXPECT_EQ(other.steps(), 1);
  take_step(other, make_batch(6, 2), SftLoss{});
  EXPECT_TRUE(same_bits(weights_of(plain), weights_of(other)));
  EXPECT_TRUE(same_bits(floats(plain.state().first_moment), floats(other.state().first_moment)));
}

TEST_F(TrainerTest, BadDataNamesStepAndSampleAndChangesNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Trainer plain = make(), trainer = make({.max_tokens = 30});
  for (Trainer* each : {&plain, &trainer}) take_step(*each, make_batch(6, 1), full_policy_loss());

  const auto spoiled = [&](const auto& change) {
    std::vector<Datum> batch = make_batch(6, 5);
    change(batch[4]);
    const std::string message = data_error([&] { take_step(trainer, batch, full_policy_loss()); });
    EXPECT_NE(message.find("step 2, sample 4"), std::string::npos) << message;
    EXPECT_THROW(trainer.optim_step(1e-3), ConfigError) << "the step is closed";
  };
  spoiled([&](Datum& datum) { datum.advantages.back() = nan; });
  spoiled([&](Datum& datum) { datum.policy_logprobs.back() = nan; });
  spoiled([&](Datum& datum) { datum.weights.pop_back(); });
  spoiled([&](Datum& datum) { datum.targets.pop_back(); });
  spoiled([&](Datum& datum) { datum.tokens[0] = 61; });
  spoiled([&](Datum& datum) { datum.tokens[0] = -1; });
  spoiled([&](Datum& datum) { datum.targets.back() = 61; });
  spoiled([&](Datum& datum) { datum.ref_logprobs.clear(); });
  spoiled([&](Datum& datum) { datum = Datum(); });
  std::vector<float> mask(66, 1);  // 65 rows, and the model has 64 positions
  mask[0] = 0;
  spoiled([&](Datum& datum) { datum = make_datum(std::vector<int32_t>(66, 1), mask); });

  for (Trainer* each : {&plain, &trainer}) take_step(*each, make_batch(6, 2), full_policy_loss());
  EXPECT_TRUE(same_bits(weights_of(plain), weights_of(trainer)));
}

TEST_F(TrainerTest, AGradientThatIsNotFiniteChangesNothing) {
  Trainer trainer = make({.temperature = 0.02f});  // dividing the gradient of a log-prob by it overflows
  std::vector<Datum> batch = make_batch(3, 1);
  const lora::AdapterVersion start = trainer.adapter();
  const auto logprobs = trainer.logprobs(batch, &start);
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].policy_logprobs = batch[i].sampled_logprobs = logprobs[i];
    for (float& advantage : batch[i].advantages) advantage = advantage < 0 ? -3e38f : 3e38f;
  }
  const std::vector<float> before = weights_of(trainer);
  const std::string message = data_error([&] { take_step(trainer, batch, PolicyLoss{}); });
  EXPECT_NE(message.find("the gradient is not finite"), std::string::npos) << message;
  EXPECT_NE(message.find("step 1"), std::string::npos) << message;
  EXPECT_EQ(trainer.steps(), 0);
  EXPECT_TRUE(same_bits(weights_of(trainer), before));
  for (const float m : floats(trainer.state().first_moment)) ASSERT_EQ(m, 0);
  EXPECT_NO_THROW(take_step(trainer, make_batch(3, 1), PolicyLoss{}));
}

TEST_F(TrainerTest, AModelThatBlowsUpNamesTheSample) {
  std::vector<float> weights = floats(*tiny_.weights);
  for (float& w : weights) w *= 1e25f;
  Trainer trainer = with_weights(weights);
  const std::string message = data_error([&] { take_step(trainer, make_batch(3, 1), SftLoss{}); });
  EXPECT_NE(message.find("step 1, sample 0"), std::string::npos) << message;
  EXPECT_TRUE(same_bits(weights_of(trainer), weights));
}

TEST_F(TrainerTest, MisuseIsRefused) {
  Trainer trainer = make();
  const std::vector<Datum> batch = make_batch(3, 1);
  EXPECT_THROW(trainer.forward_backward(batch, SftLoss{}), ConfigError);
  EXPECT_THROW(trainer.optim_step(1e-3), ConfigError);
  EXPECT_THROW(trainer.begin_step({.num_samples = 0}), ConfigError);
  EXPECT_THROW(trainer.begin_step({.num_samples = 3, .per_token = true}), ConfigError);

  trainer.begin_step(plan_of(batch));
  EXPECT_THROW(trainer.begin_step(plan_of(batch)), ConfigError);
  trainer.forward_backward(std::span(batch).first(2), SftLoss{});
  EXPECT_THROW(trainer.optim_step(1e-3), ConfigError);  // a sample is missing; the step stays open
  trainer.forward_backward(std::span(batch).last(1), SftLoss{});
  EXPECT_THROW(trainer.optim_step(-1), ConfigError);
  EXPECT_THROW(trainer.optim_step(std::numeric_limits<double>::quiet_NaN()), ConfigError);
  EXPECT_THROW(trainer.restore(1, Buffer(), Buffer()), ConfigError);
  EXPECT_NO_THROW(trainer.optim_step(1e-3));

  trainer.begin_step({.num_samples = 2});
  EXPECT_THROW(trainer.forward_backward(batch, SftLoss{}), ConfigError);  // one too many ends the step
  StepPlan plan = plan_of(batch, true);
  plan.weight_total += 1;
  trainer.begin_step(plan);
  trainer.forward_backward(batch, SftLoss{});
  EXPECT_THROW(trainer.optim_step(1e-3), ConfigError);  // loss and gradient were divided by the wrong total
  trainer.abandon_step();
  EXPECT_EQ(trainer.steps(), 1);
}

TEST_F(TrainerTest, AWholeStepIsThatOfItsParts) {
  for (const bool per_token : {false, true}) {
    const std::vector<Datum> batch = make_batch(7, 3);
    Trainer parts = make({.max_tokens = 30}), whole = make({.max_tokens = 30});
    const StepReport wanted = take_step(parts, batch, full_policy_loss(), 1e-2, per_token, 2);
    const Reduction reduction{per_token ? ReductionKind::token_mean : ReductionKind::sample_mean};
    std::vector<int64_t> heard;
    const StepReport got =
        train_step(whole, batch, full_policy_loss(), 1e-2, reduction, [&](int64_t done) { heard.push_back(done); });
    EXPECT_EQ(got.loss, wanted.loss);
    EXPECT_EQ(got.metrics, wanted.metrics);
    EXPECT_TRUE(same_bits(weights_of(whole), weights_of(parts)));
    EXPECT_GT(heard.size(), 1u);
    EXPECT_TRUE(std::ranges::is_sorted(heard));
    EXPECT_EQ(heard.back(), 7);
  }
}

TEST_F(TrainerTest, WhatIsThrownBetweenMicroBatchesAbandonsTheStep) {
  Trainer plain = make({.max_tokens = 30}), trainer = make({.max_tokens = 30});
  const auto interrupt = [](int64_t done) {
    if (done > 2) throw Cancelled({.what = "now"});
  };
  EXPECT_THROW(train_step(trainer, make_batch(7, 1), full_policy_loss(), 1e-2, {}, interrupt), Cancelled);
  EXPECT_TRUE(trainer.whole());
  EXPECT_EQ(trainer.steps(), 0);
  for (Trainer* each : {&plain, &trainer}) train_step(*each, make_batch(7, 2), full_policy_loss(), 1e-2, {});
  EXPECT_TRUE(same_bits(weights_of(plain), weights_of(trainer)));
}

TEST_F(TrainerTest, ImpossibleStateAndOptionsAreRefused) {
  const auto bytes = static_cast<size_t>(tiny_.layout->num_floats) * sizeof(float);
  Trainer trainer = make();
  EXPECT_THROW(trainer.restore(1, Buffer(bytes), Buffer(bytes - 4)), ShapeError);
  EXPECT_THROW(trainer.restore(1, Buffer(bytes + 4), Buffer(bytes)), ShapeError);
  EXPECT_THROW(trainer.restore(-1, Buffer(bytes), Buffer(bytes)), ConfigError);
  EXPECT_THROW(with_weights(std::vector<float>(3)), ShapeError);
  for (const TrainerOptions& options :
       {TrainerOptions{.beta1 = 1}, TrainerOptions{.beta2 = -0.1}, TrainerOptions{.eps = 0},
        TrainerOptions{.weight_decay = -1}, TrainerOptions{.clip_grad = -1}, TrainerOptions{.max_tokens = 0},
        TrainerOptions{.temperature = 0}, TrainerOptions{.dropout = 1}})
    EXPECT_THROW(make(options), ConfigError);
}

}  // namespace
}  // namespace lockstep::train
