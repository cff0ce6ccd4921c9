#include "recipes/reward.h"

#include <gtest/gtest.h>

namespace lockstep::recipes {
namespace {

TEST(Reward, TheLastBoxedAnswerGoesFirst) {
  EXPECT_EQ(extract_answer("\\boxed{3} then \\boxed{\\frac{1}{2}} #### 9 and 8"), "\\frac{1}{2}");
  EXPECT_EQ(extract_answer("x = \\boxed{ 1,234 }"), "1234");
}

TEST(Reward, AnUnclosedBoxIsNoAnswerOfItsOwn) {
  EXPECT_EQ(extract_answer("\\boxed{12"), "12");
}

TEST(Reward, ThenWhatFollowsTheLastMark) {
  EXPECT_EQ(extract_answer("2+3=5\n#### 7\n#### $1,250.50 \n99"), "1250.50");
  EXPECT_EQ(extract_answer("#### -3"), "-3");
  EXPECT_EQ(extract_answer("12 ####"), std::nullopt);
}

TEST(Reward, ThenTheLastNumber) {
  EXPECT_EQ(extract_answer("it was 3, then 1,024."), "1024");
  EXPECT_EQ(extract_answer("temperature -4"), "-4");
  EXPECT_EQ(extract_answer("7-4"), "4");
  EXPECT_EQ(extract_answer("about 3.50 dollars"), "3.50");
  EXPECT_EQ(extract_answer("no number here"), std::nullopt);
  EXPECT_EQ(extract_answer(""), std::nullopt);
}

TEST(Reward, AnswersAreEqualAsDecimals) {
  EXPECT_TRUE(same_answer("7", "7.0"));
  EXPECT_TRUE(same_answer("+7", "007"));
  EXPECT_TRUE(same_answer("-0", "0"));
  EXPECT_TRUE(same_answer(".5", "0.50"));
  EXPECT_FALSE(same_answer("0.1", "0.10000000000000001"));
  EXPECT_FALSE(same_answer("7", "-7"));
  EXPECT_TRUE(same_answer("\\frac{1}{2}", "\\frac{1}{2}"));
  EXPECT_FALSE(same_answer("1/2", "0.5"));
}

TEST(Reward, Math) {
  EXPECT_EQ(reward(RewardType::math, "7+8=15 5+6+1=12 #### 125", "125"), 1.0f);
  EXPECT_EQ(reward(RewardType::math, "#### 125.0", "blah #### 125"), 1.0f);
  EXPECT_EQ(reward(RewardType::math, "#### 126", "125"), 0.0f);
  EXPECT_EQ(reward(RewardType::math, "I do not know", "125"), 0.0f);
  EXPECT_EQ(reward(RewardType::math, "\\boxed{yes}", "yes"), 1.0f);
  EXPECT_EQ(reward(RewardType::math, "", ""), 0.0f);
}

TEST(Reward, Exact) {
  EXPECT_EQ(reward(RewardType::exact, "  Paris\n", "Paris"), 1.0f);
  EXPECT_EQ(reward(RewardType::exact, "paris", "Paris"), 0.0f);
  EXPECT_EQ(reward(RewardType::exact, "7.0", "7"), 0.0f);
}

}  // namespace
}  // namespace lockstep::recipes
