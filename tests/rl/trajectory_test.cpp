#include "rl/trajectory.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "rl/batch.h"
#include "rl/rule_reward.h"
#include "rollout/tiny_tokenizer.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

const std::vector<rollout::Prompt> kPrompts = {{.tokens = {5, 6}, .row = 70}, {.tokens = {9}, .row = 71}};
const std::vector<std::string> kLabels = {"one", "two"};

std::vector<rollout::Sample> samples() {
  return {{.prompt = 0, .index = 0, .tokens = {1, 2, 3}, .logprobs = {-1, -2, -3}, .versions = {4, 4, 5}},
          {.prompt = 1, .index = 0, .tokens = {8}, .logprobs = {-0.5f}, .versions = {5}}};
}

TEST(Trajectory, JoinsPromptAndResponse) {
  const auto got = make_trajectories(kPrompts, kLabels, samples(), {});
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].group, 0);
  EXPECT_EQ(got[0].tokens, (std::vector<int32_t>{5, 6, 1, 2, 3}));
  EXPECT_EQ(got[0].mask, (std::vector<float>{0, 0, 1, 1, 1}));
  EXPECT_EQ(got[0].sampled_logprobs, (std::vector<float>{0, 0, -1, -2, -3}));
  EXPECT_EQ(got[0].versions, (std::vector<int64_t>{-1, -1, 4, 4, 5}));
  EXPECT_EQ(got[0].response_len(), 3);
  EXPECT_EQ(got[0].label, "one");
  EXPECT_EQ(got[1].group, 1);
  EXPECT_EQ(got[1].tokens, (std::vector<int32_t>{9, 8}));
  EXPECT_EQ(got[1].label, "two");
  EXPECT_EQ(make_trajectories(kPrompts, {}, samples(), {})[1].label, "");
}

TEST(Trajectory, TheTextLeavesOutSpecialTokensAndTheOneThatEndedIt) {
  const text::Tokenizer words =
      rollout::testing_models::tokenizer(rollout::testing_models::two_letter_spellings(20), "<end>");
  const std::vector<int32_t> stop = {3};
  const ResponseText text{.tokenizer = &words, .stop_token_ids = stop};
  const auto response = [&](std::vector<int32_t> tokens) {
    const std::vector<rollout::Sample> one = {{.tokens = std::move(tokens)}};
    return make_trajectories(kPrompts, {}, one, text)[0].response;
  };
  EXPECT_EQ(response({0, 1, 3}), "aAaB");
  EXPECT_EQ(response({3, 1}), "aDaB") << "only a last token ends a sample";
  EXPECT_EQ(response({10, 20, 0}), "bAaA");
  EXPECT_EQ(response({}), "");
  EXPECT_EQ(make_trajectories(kPrompts, {}, samples(), {})[0].response, "") << "no tokenizer, no text";
}

TEST(Batch, RowsAskForTheNextToken) {
  const std::vector<train::Datum> datums = make_datums(make_trajectories(kPrompts, {}, samples(), {}));
  ASSERT_EQ(datums.size(), 2u);
  EXPECT_EQ(datums[0].tokens, (std::vector<int32_t>{5, 6, 1, 2}));
  EXPECT_EQ(datums[0].targets, (std::vector<int32_t>{-1, 1, 2, 3}));
  EXPECT_EQ(datums[0].weights, (std::vector<float>{0, 1, 1, 1}));
  EXPECT_EQ(datums[0].sampled_logprobs, (std::vector<float>{0, -1, -2, -3}));
  EXPECT_EQ(datums[1].sampled_logprobs, (std::vector<float>{-0.5f}));
  EXPECT_TRUE(datums[0].policy_logprobs.empty() && datums[0].advantages.empty());
}

TEST(Batch, StepsTakeDatumsInOrder) {
  std::vector<train::Datum> datums(6);
  EXPECT_EQ(step_batch(datums, 0, 2).data(), &datums[0]);
  EXPECT_EQ(step_batch(datums, 2, 2).data(), &datums[4]);
  EXPECT_EQ(step_batch(datums, 2, 2).size(), 2u);
}

TEST(RuleReward, ComparesResponsesWithTheLabelsOfTheirRows) {
  RuleReward reward({.type = RewardType::number});
  std::vector<Trajectory> trajectories(3);
  trajectories[0] = {.response = "it is 12", .label = "12"};
  trajectories[1] = {.response = "it is 13", .label = "12"};
  trajectories[2] = {.response = "7.0", .label = "#### 7"};
  EXPECT_EQ(reward.grade(trajectories), (std::vector<float>{1, 0, 1}));
  trajectories[1].group = 5;
  trajectories[1].label = "\\boxed{}";
  testing::expect_error<DataError>([&] { reward.grade(trajectories); }, {"no answer", "prompt 5", "\\boxed{}"});
}

}  // namespace
}  // namespace lockstep::rl
