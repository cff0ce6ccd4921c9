// What a checkpoint says of the method of a run.
#include "recipes/algorithm.h"

#include <gtest/gtest.h>

namespace lockstep::recipes {
namespace {

TEST(AlgorithmSettings, OfTheUsualMethodThereAreNone) {
  EXPECT_TRUE(algorithm_settings(RlOptions()).empty());
}

// Numbers of enums would mean something else as soon as one is added between others.
TEST(AlgorithmSettings, ChoicesLieThereByName) {
  RlOptions options;
  options.advantage.estimator = rl::Estimator::rloo;
  options.advantage.group.spread = rl::Spread::batch;
  options.reward.sum = rl::RewardSum::normalize_then_sum;
  options.loss.objective = train::PolicyObjective::vespo;
  options.loss.ratio_level = train::RatioLevel::sequence;
  options.row_choice.kind = train::RowChoiceKind::kl_cov;
  options.reduction.kind = train::ReductionKind::fixed_length;
  options.on_reward_failure = rl::RewardFailure::stop;
  options.correction = {.rules = {{.measure = rl::Measure::k3,
                                   .level = rl::MeasureLevel::seq_max,
                                   .action = rl::CorrectionAction::reject,
                                   .low = 0,
                                   .high = 0.01}},
                        .veto = 1e-4,
                        .normalize = true};
  options.difficulty = {.easy = 0.9, .hard_fraction = 0.25};
  const OrderedJson settings = algorithm_settings(options);
  EXPECT_EQ(settings["--advantage-estimator"], "rloo");
  EXPECT_EQ(settings["--scale-rewards"], "batch");
  EXPECT_EQ(settings["--multi-objective-aggregation"], "normalize_then_sum");
  EXPECT_EQ(settings["--policy-loss"], "vespo");
  EXPECT_EQ(settings["ratio of --policy-loss"], "sequence");
  EXPECT_EQ(settings["rows of --policy-loss"], "kl_cov");
  EXPECT_EQ(settings["--loss-agg-mode"], "seq-mean-token-sum-norm");
  EXPECT_EQ(settings["--on-reward-failure"], "stop");
  EXPECT_EQ(settings["rules of --use-tis"].dump(), R"(["k3:seq_max:reject:0:0.01","veto 0.0001","normalize"])");
  EXPECT_EQ(settings["--easy-threshold"], 0.9);
  EXPECT_EQ(settings["--hard-fraction"], 0.25);
  EXPECT_FALSE(settings.contains("--hard-threshold"));
}

}  // namespace
}  // namespace lockstep::recipes
