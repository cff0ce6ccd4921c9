// --rm-type code: what responses earn, and where code and cases stand.
#include "rl/code_reward.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "rl/reward/code.h"
#include "rl/reward_queue.h"

namespace lockstep::rl {
namespace {

using namespace std::chrono_literals;

RewardSample sample(const std::string& response, const std::string& label) {
  return {.row = std::make_shared<RewardRow>(RewardRow{.prompt = "", .label = label}), .response = response};
}

TEST(CodeReward, IsTheShareOfCasesThatPass) {
  std::unique_ptr<CodeReward> reward;
  try {
    reward = std::make_unique<CodeReward>(CodeRewardOptions{.workers = 2, .timeout = 60s});
  } catch (const ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  const std::string cases = R"({"inputs": ["1 2", "3 4"], "outputs": ["3", "7\n"]})";
  const auto scores = grade_all(
      *reward,
      {sample("<think>```x```</think>So:\n```python\nprint(sum(map(int, input().split())))\n```", cases),
       sample("print(3)", cases), sample("syntax error", cases),
       sample("def f(x):\n    return x + 1", R"(["assert f(1) == 2"])"),
       sample("def f(x):\n    return x", R"(["assert f(1) == 2", "assert f(0) == 0"])"), sample("print(1)", "three")},
      1);
  EXPECT_EQ(scores[0].value, 1.0f) << scores[0].failure;
  EXPECT_EQ(scores[1].value, 0.5f);
  EXPECT_EQ(scores[2].value, 0.0f);
  EXPECT_EQ(scores[3].value, 1.0f);
  EXPECT_EQ(scores[4].value, 0.5f);
  EXPECT_FALSE(scores[5].value.has_value());
  EXPECT_NE(scores[5].failure.find("inputs"), std::string::npos);
}

TEST(Code, StandsInTheLastFence) {
  EXPECT_EQ(code_of("a ```python\nx\n``` b ```\ny\n``` c"), "y\n");
  EXPECT_EQ(code_of("```py\nx\n```</think>z"), "z");
  EXPECT_EQ(code_of("x = 1"), "x = 1");
  EXPECT_EQ(code_of("``` unclosed\nx"), "``` unclosed\nx");
}

TEST(Code, CasesAreTextsInJson) {
  EXPECT_EQ(code_cases(R"({"inputs": ["a", "b"], "outputs": ["c", "d"]})")->cases.size(), 2u);
  EXPECT_EQ(code_cases(R"({"assert_case": ["assert True"]})")->cases.at(0).appended, "\n\nassert True\n");
  for (const char* bad : {"", "{}", "[]", "3", "[1]", R"({"inputs": ["a"], "outputs": []})", R"({"inputs": ["a"]})",
                          R"({"inputs": [1], "outputs": ["1"]})", R"({"tests": "assert True"})"})
    EXPECT_FALSE(code_cases(bad).has_value()) << bad;
  const CodeCase one{.output = "1 2 \n3\n\n"};
  EXPECT_TRUE(one.passes("1 2\n3"));
  EXPECT_FALSE(one.passes("1  2\n3"));
}

}  // namespace
}  // namespace lockstep::rl
