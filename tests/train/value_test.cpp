// A Trainer whose adapter has a value head: values, the gradients of a ValueLoss, and what neither depends on.
#include <cmath>

#include "core/error.h"
#include "support/temp_directory.h"
#include "train/not_finite_error.h"
#include "trainer_fixture.h"

namespace lockstep::train {
namespace {

using testing::make_batch;
using testing::random_float;
using testing::take_step;

class Critics : public TrainerTest {
 protected:
  Critics() {
    tiny_ = testing::with_value_head(tiny_);
    testing::add_values(batch_);
    for (size_t i = 1; i < batch_.size(); i += 4)
      batch_[i].weights[batch_[i].weights.size() / 2] = 0;     // what lies between turns
    batch_[5].weights.assign(batch_[5].weights.size(), 0.0f);  // nothing is learned from it
  }

  std::vector<float> step(const TrainerOptions& options, size_t chunk = 0, bool per_token = false) {
    Trainer critic = make(options);
    take_step(critic, batch_, ValueLoss{}, 1e-2, per_token, chunk);
    take_step(critic, batch_, ValueLoss{}, 1e-2, per_token, chunk);
    return testing::floats(*critic.adapter().weights);
  }

  std::vector<Datum> batch_ = make_batch(12, 77);
};

TEST_F(Critics, ValuesAreOfTheTokensSoFarWhateverElseIsInTheBatch) {
  Trainer critic = make();
  const auto together = critic.values(batch_);
  ASSERT_EQ(together.size(), batch_.size());
  double largest = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    ASSERT_EQ(together[i].size(), batch_[i].tokens.size());
    for (size_t t = 0; t < together[i].size(); ++t) {
      if (batch_[i].weights[t] == 0) {
        EXPECT_EQ(together[i][t], 0) << i << ", " << t;
      }
      largest = std::max<double>(largest, std::fabs(together[i][t]));
    }
    Trainer alone = make({.max_tokens = 1});
    EXPECT_EQ(alone.values(std::span(batch_).subspan(i, 1))[0], together[i]);
    // A token that comes later changes no value before it.
    Datum other = batch_[i];
    other.tokens.back() = (other.tokens.back() + 1) % 61;
    const auto changed = critic.values(std::span(&other, 1))[0];
    EXPECT_TRUE(std::equal(changed.begin(), changed.end() - 1, together[i].begin()));
    if (batch_[i].weights.back() > 0) {
      EXPECT_NE(changed.back(), together[i].back());
    }
  }
  EXPECT_GT(largest, 0.1);
}

TEST_F(Critics, ValuesAreThoseThatTheLossIsOf) {
  for (Datum& datum : batch_) datum.returns.assign(datum.tokens.size(), 0.25f);
  Trainer critic = make();
  const auto values = critic.values(batch_);
  double wanted = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    double sum = 0;
    for (size_t t = 0; t < values[i].size(); ++t)
      sum += batch_[i].weights[t] * (values[i][t] - 0.25) * (values[i][t] - 0.25);
    if (batch_[i].weight_sum() > 0) wanted += sum / batch_[i].weight_sum() / static_cast<double>(batch_.size());
  }
  EXPECT_NEAR(loss_of(critic, batch_, ValueLoss{.clip = 0}), wanted, 1e-9);
}

// Along random directions of head and adapter, against differences of the loss.
TEST_F(Critics, GradientsAreThoseOfTheLoss) {
  const std::vector<float> start = testing::floats(*tiny_.weights);
  const ValueLoss loss{.clip = 0};
  Trainer critic = make({.eps = 1e-30, .weight_decay = 0, .clip_grad = 0});
  take_step(critic, batch_, loss, 0);  // the first moment is a tenth of the gradient
  const Buffer moment = critic.state().first_moment;
  for (uint32_t direction = 0; direction < 4; ++direction) {
    constexpr float kStep = 1.0f / 256;
    double along = 0, size = 0;
    const auto moved = [&](float step) {
      std::vector<float> weights = start;
      along = size = 0;
      for (int64_t i = 0; i < tiny_.layout->num_trained; ++i) {
        // The last two move the head alone.
        const bool moves = direction < 2 || i >= tiny_.layout->value_head->weight;
        const float u = moves ? random_float(700 + direction, static_cast<uint32_t>(i), 0) : 0;
        weights[static_cast<size_t>(i)] += step * u;
        const double term = 10.0 * double(moment.f32()[i]) * u;
        along += term;
        size += std::fabs(term);
      }
      Trainer there = with_weights(weights);
      return loss_of(there, batch_, loss);
    };
    const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    EXPECT_NEAR(along, slope, 2e-3 * size) << direction;
    EXPECT_GT(size, 0);
  }
}

TEST_F(Critics, AStepsBitsDoNotDependOnMicroBatches) {
  const std::vector<float> whole = step({});
  EXPECT_NE(whole, testing::floats(*tiny_.weights));
  EXPECT_EQ(step({.max_tokens = 1}), whole);
  EXPECT_EQ(step({.max_tokens = 40}, 5), whole);
  EXPECT_EQ(step({.recompute = model::Recompute::full}, 1), whole);
  const std::vector<float> per_token = step({}, 0, true);
  EXPECT_NE(per_token, whole);
  EXPECT_EQ(step({.max_tokens = 30}, 3, true), per_token);
}

TEST_F(Critics, LearnTheReturns) {
  Trainer critic = make();
  const double before = loss_of(critic, batch_, ValueLoss{.clip = 0});
  for (int i = 0; i < 60; ++i) take_step(critic, batch_, ValueLoss{.clip = 0}, 1e-2);
  EXPECT_LT(loss_of(critic, batch_, ValueLoss{.clip = 0}), 0.2 * before);
}

TEST_F(Critics, StateGoesOnBitForBit) {
  Trainer whole = make(), first = make();
  for (int i = 0; i < 4; ++i) take_step(whole, batch_, ValueLoss{});
  for (int i = 0; i < 2; ++i) take_step(first, batch_, ValueLoss{});
  Trainer::State state = first.state();
  Trainer second = with_weights(testing::floats(*first.adapter().weights));
  second.restore(state.steps, std::move(state.first_moment), std::move(state.second_moment));
  for (int i = 0; i < 2; ++i) take_step(second, batch_, ValueLoss{});
  EXPECT_EQ(testing::floats(*second.adapter().weights), testing::floats(*whole.adapter().weights));
}

TEST_F(Critics, WhatCannotBeIsRefused) {
  using lockstep::testing::expect_error;
  Trainer critic = make();
  Trainer policy = [&] {
    testing::Tiny plain = testing::make_tiny(stream_);
    return Trainer(plain.model, plain.layout, plain.weights, {}, stream_);
  }();
  expect_error<ConfigError>([&] { policy.values(batch_); }, {"no value head"});
  expect_error<ConfigError>([&] { take_step(policy, batch_, ValueLoss{}); }, {"no value head"});
  expect_error<ConfigError>([&] { take_step(critic, batch_, ValueLoss{.clip = -1}); }, {"ValueLoss::clip"});
  critic.abandon_step();
  critic.begin_step(testing::plan_of(batch_));
  expect_error<ConfigError>([&] { critic.values(batch_); }, {"step 1"});
  critic.abandon_step();
  std::vector<Datum> lacking = batch_;
  lacking[3].values.clear();
  expect_error<DataError>([&] { take_step(critic, lacking, ValueLoss{}); }, {"sample 3", "values"});
  lacking = batch_;
  lacking[3].returns.back() = NAN;
  expect_error<DataError>([&] { take_step(critic, lacking, ValueLoss{}); }, {"sample 3", "not finite"});
  std::vector<float> broken = testing::floats(*tiny_.weights);
  broken[static_cast<size_t>(tiny_.layout->value_head->weight)] = INFINITY;
  Trainer infinite = with_weights(broken);
  expect_error<NotFiniteError>([&] { take_step(infinite, batch_, ValueLoss{}); }, {"sample 0", "value"});
  Evaluation sums;
  expect_error<ConfigError>([&] { critic.evaluate(batch_, ValueLoss{}, sums); }, {"evaluated by rollouts"});
}

}  // namespace
}  // namespace lockstep::train
