#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

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

// Values of Megatron's OptimizerParamScheduler at steps 0, 1, 2, 5, 6 ... 11.
TEST(Schedule, WsdIsFlatAndThenFalls) {
  const std::vector<std::pair<const char*, std::vector<double>>> all = {
      {"exponential", {0, 0.5, 1, 1, 1, 0.7136135474566861, 0.47279220613578565, 0.2702864035024489, 0.1, 0.1}},
      {"linear", {0, 0.5, 1, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1}},
      {"cosine", {0, 0.5, 1, 1, 1, 0.8681980515339464, 0.55, 0.23180194846605365, 0.1, 0.1}},
      {"minus_sqrt", {0, 0.5, 1, 1, 1, 0.55, 0.36360389693210715, 0.22057713659400527, 0.1, 0.1}}};
  const int64_t steps[] = {0, 1, 2, 5, 6, 7, 8, 9, 10, 11};
  for (const auto& [name, wanted] : all) {
    const Schedule schedule{.lr = 1.0,
                            .min_lr = 0.1,
                            .style = DecayStyle::wsd,
                            .warmup_steps = 2,
                            .decay_steps = 10,
                            .wsd_style = parse_wsd_style(name),
                            .wsd_decay_steps = 4};
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_DOUBLE_EQ(schedule.at(steps[i]), wanted[i]) << name << steps[i];
  }
  EXPECT_THROW(parse_wsd_style("sqrt"), ConfigError);
  EXPECT_EQ(decay_style_name(parse_decay_style("WSD")), std::string("WSD"));
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
