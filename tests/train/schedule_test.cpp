#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace lockstep::train {
namespace {

TEST(Schedule, ConstantStaysAndIgnoresDecaySteps) {
  const Schedule schedule{.lr = 1e-3, .min_lr = 1e-5, .decay_steps = 4};
  for (const int64_t step : {0, 1, 4, 1000}) EXPECT_EQ(schedule.at(step), 1e-3);
}

// As Megatron's OptimizerParamScheduler: the first step under warm-up has a rate of 0, and min_lr does not lift it.
TEST(Schedule, WarmsUpFromZero) {
  for (const DecayStyle style : {DecayStyle::constant, DecayStyle::linear, DecayStyle::cosine}) {
    const Schedule schedule{.lr = 2.0, .min_lr = 0.5, .style = style, .warmup_steps = 4, .decay_steps = 8};
    EXPECT_EQ(schedule.at(0), 0.0);
    EXPECT_DOUBLE_EQ(schedule.at(1), 0.5);
    EXPECT_DOUBLE_EQ(schedule.at(3), 1.5);
    EXPECT_DOUBLE_EQ(schedule.at(4), 2.0);
    EXPECT_DOUBLE_EQ(schedule.at(6), style == DecayStyle::constant ? 2.0 : 1.25);
    EXPECT_DOUBLE_EQ(schedule.at(8), style == DecayStyle::constant ? 2.0 : 0.5);
  }
}

TEST(Schedule, LinearFallsToTheMinimumAndStays) {
  const Schedule schedule{.lr = 1.0, .min_lr = 0.2, .style = DecayStyle::linear, .decay_steps = 8};
  EXPECT_DOUBLE_EQ(schedule.at(0), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(2), 0.8);
  EXPECT_DOUBLE_EQ(schedule.at(7), 0.3);
  EXPECT_DOUBLE_EQ(schedule.at(8), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(100), 0.2);
}

TEST(Schedule, CosineFallsAfterWarmup) {
  const Schedule schedule{.lr = 1.0, .min_lr = 0.1, .style = DecayStyle::cosine, .warmup_steps = 2, .decay_steps = 10};
  EXPECT_EQ(schedule.at(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(schedule.at(6), 0.55);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(11), 0.1);
}

TEST(Schedule, DecayShorterThanWarmupEndsAtTheMinimum) {
  const Schedule schedule{.lr = 1.0, .min_lr = 0.1, .style = DecayStyle::linear, .warmup_steps = 4, .decay_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.75);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.1);
}

TEST(Schedule, ParsesStyles) {
  EXPECT_EQ(parse_decay_style("constant"), DecayStyle::constant);
  EXPECT_EQ(parse_decay_style("linear"), DecayStyle::linear);
  EXPECT_EQ(parse_decay_style("cosine"), DecayStyle::cosine);
  EXPECT_THROW(parse_decay_style("inverse-square-root"), ConfigError);
}

}  // namespace
}  // namespace lockstep::train
