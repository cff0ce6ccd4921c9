#include "rl/majority.h"

#include <gtest/gtest.h>

#include <vector>

#include "rl/reward/answer.h"

namespace lockstep::rl {
namespace {

using Rewards = std::vector<std::optional<float>>;
using Answers = std::vector<std::optional<std::string>>;

TEST(Majority, TheMostFrequentAnswerCounts) {
  EXPECT_EQ(majority_reward(Rewards{0, 1, 1, 0}, Answers{"5", "7", "7", "6"}, 4), 1);
  EXPECT_EQ(majority_reward(Rewards{1, 0, 0, 0}, Answers{"7", "5", "5", "6"}, 4), 0);
  EXPECT_EQ(majority_reward(Rewards{0, 1, 1, 0}, Answers{"5", "7", "7", "5"}, 4), 0);  // of equals the first
  EXPECT_EQ(majority_reward(Rewards{0, 0, 1}, Answers{{}, {}, "7"}, 3), 1);            // no answer, no vote
  EXPECT_EQ(majority_reward(Rewards{0.5f, 0, 1}, Answers{{}, {}, {}}, 3), 0.5);
  EXPECT_EQ(majority_reward(Rewards{1, 1, 0, 0, 0, 1}, Answers{"7", "7", "3", "2", "2", "1"}, 3), 0.5);
}

TEST(Majority, PromptsOfUnknownRewardsAreLeftOut) {
  EXPECT_EQ(majority_reward(Rewards{{}, 0, 1, 1}, Answers{"1", "1", "2", "2"}, 2), 1);
  EXPECT_FALSE(majority_reward(Rewards{{}, 1}, Answers{"1", "1"}, 2));
}

TEST(Majority, AnswersAreThoseThatTheRulesRead) {
  const auto answer = [](const char* rule, const char* response) { return answer_of(*rule_of(rule), response); };
  EXPECT_EQ(answer("math", "so \\boxed{ \\frac12 }."), "\\frac12");
  EXPECT_EQ(answer("math", "12"), std::nullopt);
  EXPECT_EQ(answer("deepscaler", "\\boxed{1}</think> \\boxed{2}"), "2");
  EXPECT_EQ(answer("deepscaler", "\\boxed{1}"), std::nullopt);
  EXPECT_EQ(answer("number", "first 13, then 1,200."), "1,200");
  EXPECT_EQ(answer("gsm8k", "x #### 1,200"), "1200");
  EXPECT_EQ(answer("gsm8k", "1200"), std::nullopt);
  EXPECT_EQ(answer("dapo", "Answer: 1,200 dollars"), "1200");
  EXPECT_EQ(answer("gpqa", "the answer is (c)"), "C");
  EXPECT_EQ(answer("exact", "  a b "), "a b");
  EXPECT_EQ(answer("exact", "  "), std::nullopt);
  EXPECT_EQ(answer("boxed_number", "\\boxed{x = 7} 8"), "7");
  for (const char* rule : {"f1", "regex", "json_schema", "length", "format", "random"}) {
    EXPECT_FALSE(has_answers(*rule_of(rule))) << rule;
    EXPECT_EQ(answer(rule, "7"), std::nullopt) << rule;
  }
}

}  // namespace
}  // namespace lockstep::rl
