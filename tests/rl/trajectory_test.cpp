#include "rl/trajectory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "rl/batch.h"
#include "rl/reward_queue.h"
#include "rl/rule_reward.h"
#include "rollout/tiny_tokenizer.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

const std::vector<rollout::Prompt> kPrompts = {{.tokens = {5, 6}, .row = 70}, {.tokens = {9}, .row = 71}};

std::shared_ptr<const RewardRow> row(std::string label) {
  return std::make_shared<RewardRow>(RewardRow{.prompt = "say", .label = std::move(label)});
}

std::vector<rollout::Sample> samples() {
  return {{.prompt = 0,
           .index = 0,
           .tokens = {1, 2, 3},
           .logprobs = {-1, -2, -3},
           .versions = {4, 4, 5},
           .finish = rollout::FinishReason::length},
          {.prompt = 1,
           .index = 0,
           .tokens = {8},
           .logprobs = {-0.5f},
           .versions = {5},
           .finish = rollout::FinishReason::stop}};
}

std::vector<Trajectory> trajectories() {
  return {make_trajectory(kPrompts[0], row("one"), samples()[0], {}),
          make_trajectory(kPrompts[1], row("two"), samples()[1], {})};
}

TEST(Trajectory, JoinsPromptAndResponse) {
  const auto got = trajectories();
  EXPECT_EQ(got[0].group, 0);
  EXPECT_EQ(got[0].tokens, (std::vector<int32_t>{5, 6, 1, 2, 3}));
  EXPECT_EQ(got[0].mask, (std::vector<float>{0, 0, 1, 1, 1}));
  EXPECT_EQ(got[0].sampled_logprobs, (std::vector<float>{0, 0, -1, -2, -3}));
  EXPECT_EQ(got[0].versions, (std::vector<int64_t>{-1, -1, 4, 4, 5}));
  EXPECT_EQ(got[0].response_len(), 3);
  EXPECT_EQ(got[0].row->label, "one");
  EXPECT_FALSE(got[0].reward.has_value());
  EXPECT_EQ(got[1].group, 1);
  EXPECT_EQ(got[1].tokens, (std::vector<int32_t>{9, 8}));
  EXPECT_EQ(got[1].row->label, "two");
}

TEST(Trajectory, ARewardSeesTheResponse) {
  const RewardSample first = reward_sample(trajectories()[0]), second = reward_sample(trajectories()[1]);
  EXPECT_EQ(first.tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(first.row->label, "one");
  EXPECT_TRUE(first.truncated);
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{8}));
  EXPECT_EQ(second.group, 1);
  EXPECT_FALSE(second.truncated);
}

TEST(Trajectory, TheTextLeavesOutSpecialTokensAndTheOneThatEndedIt) {
  const text::Tokenizer words =
      rollout::testing_models::tokenizer(rollout::testing_models::two_letter_spellings(20), "<end>");
  const std::vector<int32_t> stop = {3};
  const ResponseText text{.tokenizer = &words, .stop_token_ids = stop};
  const auto response = [&](std::vector<int32_t> tokens) {
    return make_trajectory(kPrompts[0], row(""), {.tokens = std::move(tokens)}, text).response;
  };
  EXPECT_EQ(response({0, 1, 3}), "aAaB");
  EXPECT_EQ(response({3, 1}), "aDaB") << "only a last token ends a sample";
  EXPECT_EQ(response({10, 20, 0}), "bAaA");
  EXPECT_EQ(response({}), "");
  EXPECT_EQ(trajectories()[0].response, "") << "no tokenizer, no text";
}

TEST(Batch, RowsAskForTheNextToken) {
  std::vector<Trajectory> two = trajectories();
  two[0].reward = 0.5f;
  const std::vector<train::Datum> datums = make_datums(two);
  ASSERT_EQ(datums.size(), 2u);
  EXPECT_EQ(datums[0].tokens, (std::vector<int32_t>{5, 6, 1, 2}));
  EXPECT_EQ(datums[0].targets, (std::vector<int32_t>{-1, 1, 2, 3}));
  EXPECT_EQ(datums[0].weights, (std::vector<float>{0, 1, 1, 1}));
  EXPECT_EQ(datums[0].sampled_logprobs, (std::vector<float>{0, -1, -2, -3}));
  EXPECT_EQ(datums[1].sampled_logprobs, (std::vector<float>{-0.5f}));
  EXPECT_EQ(datums[1].weights, (std::vector<float>{0})) << "its reward is unknown";
  EXPECT_TRUE(datums[0].policy_logprobs.empty() && datums[0].advantages.empty());
}

// Baselines read how long a masked sample is, and its KL; nobody chose the tokens of its prompt or of a tool.
TEST(Batch, MaskedTokensKeepTheirTargets) {
  std::vector<Trajectory> two = trajectories();
  two[0].reward = two[1].reward = 0.5f;
  two[0].mask = {0, 0, 0, 0, 1};
  two[0].versions = {lora::PolicyId::kBase, lora::PolicyId::kBase, 3, lora::PolicyId::kBase, 4};
  two[1].mask.assign(two[1].mask.size(), 0.0f);
  const std::vector<train::Datum> datums = make_datums(two);
  EXPECT_EQ(datums[0].targets, (std::vector<int32_t>{-1, 1, -1, 3}));
  EXPECT_EQ(datums[0].weights, (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(datums[1].targets, (std::vector<int32_t>{8}));
  EXPECT_EQ(datums[1].weights, (std::vector<float>{0}));
}

TEST(Batch, StepsTakeDatumsInOrder) {
  std::vector<train::Datum> datums(6);
  EXPECT_EQ(step_batch(datums, 0, 2).data(), &datums[0]);
  EXPECT_EQ(step_batch(datums, 2, 2).data(), &datums[4]);
  EXPECT_EQ(step_batch(datums, 2, 2).size(), 2u);
}

TEST(RuleReward, ComparesResponsesWithTheLabelsOfTheirRows) {
  RuleReward reward({.type = RewardType::number});
  const auto scores = grade_all(reward,
                                {{.row = row("12"), .response = "it is 12"},
                                 {.row = row("12"), .response = "it is 13"},
                                 {.row = row("#### 7"), .response = "7.0"},
                                 {.row = row("\\boxed{}"), .response = "7"}},
                                2);
  ASSERT_EQ(scores.size(), 4u);
  EXPECT_EQ(scores[0].value, 1.0f);
  EXPECT_EQ(scores[1].value, 0.0f);
  EXPECT_EQ(scores[2].value, 1.0f);
  EXPECT_FALSE(scores[3].value.has_value()) << "unknown, not wrong";
  EXPECT_NE(scores[3].failure.find("is not a text"), std::string::npos);
}

TEST(Score, IsAFiniteFloatOrUnknown) {
  EXPECT_EQ(Score::of(0.25).value, 0.25f);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e300}) {
    EXPECT_FALSE(Score::of(bad).value.has_value()) << bad;
    EXPECT_FALSE(Score::of(bad).failure.empty());
  }
}

}  // namespace
}  // namespace lockstep::rl
