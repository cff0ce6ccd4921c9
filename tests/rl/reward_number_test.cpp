// --rm-type number and exact, and where answers are found in texts.
#include <gtest/gtest.h>

#include <string>

#include "rl/reward/exact.h"
#include "rl/reward/extract.h"
#include "rl/reward/number.h"
#include "rl/reward/rule.h"

namespace lockstep::rl {
namespace {

TEST(Extract, LastBoxed) {
  EXPECT_EQ(last_boxed("\\boxed{1} and \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(last_boxed("\\boxed{\\{1, 2\\}}"), "\\{1, 2\\}");
  EXPECT_EQ(last_boxed("\\boxed{\\left\\{x\\right.}"), "\\left\\{x\\right.");
  EXPECT_EQ(last_boxed("\\boxed{1\\\\{2}}"), "1\\\\{2}");
  EXPECT_EQ(last_boxed("\\boxed{}"), "");
  EXPECT_EQ(last_boxed("no box"), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed{1} then \\boxed 2"), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed{1} then \\boxed{2"), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed"), std::nullopt);
}

TEST(Extract, ALabelIsItsOwnAnswer) {
  for (const char* label : {"\\frac{1}{2}", "1/2", "x^2+1", "(3, 4)", "10^{5}", "1e6", "yes", "The answer is 7"})
    EXPECT_EQ(label_answer(label), label);
  EXPECT_EQ(label_answer("  42 \n"), "42");
  EXPECT_EQ(label_answer("so \\boxed{3} it is #### 4"), "3");
  EXPECT_EQ(label_answer("2+2=4\n#### 4 \nmore"), "4");
  for (const char* none : {"", " \n", "\\boxed{ }", "\\boxed{3", "what\n####  "})
    EXPECT_EQ(label_answer(none), std::nullopt);
}

TEST(Number, TheLastBoxedAnswerGoesFirst) {
  EXPECT_EQ(number_answer("\\boxed{3} then \\boxed{\\frac{1}{2}} #### 9 and 8"), "\\frac{1}{2}");
  EXPECT_EQ(number_answer("x = \\boxed{ $1,234 }"), "1,234");
}

TEST(Number, AnUnclosedBoxIsNoAnswerOfItsOwn) {
  EXPECT_EQ(number_answer("\\boxed{12"), "12");
}

TEST(Number, ThenWhatFollowsTheLastMark) {
  EXPECT_EQ(number_answer("2+3=5\n#### 7\n#### $1,250.50 \n99"), "1,250.50");
  EXPECT_EQ(number_answer("#### -3"), "-3");
  EXPECT_EQ(number_answer("12 ####"), std::nullopt);
}

TEST(Number, ThenTheLastNumber) {
  EXPECT_EQ(number_answer("it was 3, then 1,024."), "1,024");
  EXPECT_EQ(number_answer("temperature -4"), "-4");
  EXPECT_EQ(number_answer("7-4"), "4");
  EXPECT_EQ(number_answer("about 3.50 dollars"), "3.50");
  EXPECT_EQ(number_answer("no number here"), std::nullopt);
  EXPECT_EQ(number_answer(""), std::nullopt);
}

TEST(Number, AnswersAreEqualAsDecimals) {
  EXPECT_TRUE(same_number("7", "7.0"));
  EXPECT_TRUE(same_number("+7", "007"));
  EXPECT_TRUE(same_number("-0", "0"));
  EXPECT_TRUE(same_number(".5", "0.50"));
  EXPECT_TRUE(same_number("7.", "7"));
  EXPECT_TRUE(same_number("1,234", "1234"));
  EXPECT_TRUE(same_number("1e6", "1,000,000"));
  EXPECT_TRUE(same_number("1.50E+2", "150"));
  EXPECT_TRUE(same_number("25e-2", "0.25"));
  EXPECT_TRUE(same_number("0e9", "-0.00"));
  EXPECT_TRUE(same_number("1e2147483647", "10e2147483646"));
  EXPECT_FALSE(same_number("0.1", "0.10000000000000001"));
  EXPECT_FALSE(same_number("7", "-7"));
  EXPECT_FALSE(same_number("1e6", "6"));
  EXPECT_FALSE(same_number("1e99999999999", "1e99999999998"));
  EXPECT_TRUE(same_number("\\frac{1}{2}", "\\frac{1}{2}"));
  EXPECT_FALSE(same_number("1/2", "0.5"));
  EXPECT_FALSE(same_number("(3,4)", "(34)"));
}

TEST(Number, Verdicts) {
  EXPECT_EQ(grade_number("7+8=15 5+6+1=12 #### 125", "125"), 1.0f);
  EXPECT_EQ(grade_number("#### 125.0", "blah #### 125"), 1.0f);
  EXPECT_EQ(grade_number("#### 126", "125"), 0.0f);
  EXPECT_EQ(grade_number("I do not know", "125"), 0.0f);
  EXPECT_EQ(grade_number("\\boxed{yes}", "yes"), 1.0f);
}

// A number in it is not the label.
TEST(Number, LabelsThatAreNoPlainNumbersAreComparedWhole) {
  for (const std::string label : {"\\frac{1}{2}", "1/2", "x^2+1", "(3, 4)", "10^{5}"}) {
    EXPECT_EQ(grade_number("so \\boxed{" + label + "}", label), 1.0f) << label;
    EXPECT_EQ(grade_number("#### " + label, label), 1.0f) << label;
    for (const char* part : {"1", "2", "4", "5"})
      EXPECT_EQ(grade_number(std::string("\\boxed{") + part + "}", label), 0.0f);
  }
  EXPECT_EQ(grade_number("it is 1,000,000", "1e6"), 1.0f);
  EXPECT_EQ(grade_number("it is 6", "1e6"), 0.0f);
}

TEST(Number, WithoutAnAnswerInTheLabelTheVerdictIsUnknown) {
  EXPECT_EQ(grade_number("12", ""), std::nullopt);
  EXPECT_EQ(grade_number("\\boxed{}", "\\boxed{}"), std::nullopt);
  EXPECT_FALSE(is_gradable({RewardType::number}, " "));
  EXPECT_FALSE(is_gradable({RewardType::math}, "\\boxed{1"));
  EXPECT_TRUE(is_gradable({RewardType::math}, "1"));
  EXPECT_TRUE(is_gradable({RewardType::exact}, ""));
}

TEST(Exact, TheWholeText) {
  EXPECT_EQ(grade_exact("  Paris\n", "Paris"), 1.0f);
  EXPECT_EQ(grade_exact("paris", "Paris"), 0.0f);
  EXPECT_EQ(grade_exact("7.0", "7"), 0.0f);
}

TEST(Reward, EachNameHasItsGrader) {
  const auto verdict = [](const RewardRule& rule, const std::string& response, const std::string& label) {
    return grade(rule, {.response = response, .label = label});
  };
  const std::string response = "first \\boxed{0.5}, 8";
  EXPECT_EQ(verdict({RewardType::math}, response, "\\frac12"), 1.0);
  EXPECT_EQ(verdict({RewardType::number}, response, "\\frac12"), 0.0);
  EXPECT_EQ(verdict({RewardType::exact}, response, response), 1.0);
  EXPECT_EQ(verdict({RewardType::math}, "\\boxed{0.333}", "1/3"), 0.0);
  EXPECT_EQ(verdict({.type = RewardType::math, .math_tolerance = 0.01}, "\\boxed{0.333}", "1/3"), 1.0);
}

}  // namespace
}  // namespace lockstep::rl
