// The rules beside math, number and exact: verdicts, labels they cannot use, texts that somebody made to hurt.
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "rl/reward/dapo.h"
#include "rl/reward/rule.h"

namespace lockstep::rl {
namespace {

std::optional<double> verdict(const std::string& name, const std::string& response, const std::string& label) {
  return grade(rule_of(name).value(), {.response = response, .label = label});
}

TEST(Rules, EveryNameIsReadAsItIsWritten) {
  std::set<std::string> names;
  const std::string all = rule_names() + "|";
  for (size_t begin = 0, end; (end = all.find('|', begin)) != std::string::npos; begin = end + 1) {
    const std::string name = all.substr(begin, end - begin);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(rule_name(rule_of(name).value()), name);
  }
  EXPECT_GE(names.size(), 25u);
  for (const char* unknown :
       {"", "boxed_", "boxed_math", "boxed_deepscaler", "boxed_format", "ifbench", "boxed_boxed_f1"})
    EXPECT_FALSE(rule_of(unknown).has_value()) << unknown;
}

TEST(Deepscaler, ReadsBehindTheThought) {
  EXPECT_EQ(verdict("deepscaler", "<think>\\boxed{1}</think> so \\boxed{2}", "2"), 1.0);
  EXPECT_EQ(verdict("deepscaler", "<think>\\boxed{2}</think> so \\boxed{1}", "2"), 0.0);
  EXPECT_EQ(verdict("deepscaler", "a</think>b</think>\\boxed{\\frac12}", "0.5"), 1.0);
  EXPECT_EQ(verdict("deepscaler", "###Response \\boxed{2} ###Response \\boxed{3}", "2"), 1.0);
  EXPECT_EQ(verdict("deepscaler", "so \\boxed{2}", "2"), 0.0) << "neither a thought nor a response";
  EXPECT_EQ(verdict("deepscaler", "</think>2", "2"), 0.0);
  EXPECT_EQ(verdict("deepscaler", "</think>\\boxed{2}", "it is \\boxed{2}"), 1.0);
  EXPECT_EQ(verdict("deepscaler", "</think>\\boxed{2}", ""), std::nullopt);
}

TEST(Dapo, AnIntegerBehindAnswer) {
  for (const char* right :
       {"Answer: 42", "answer : 42", "ANSWER:42 ", "Answer: $42$", "Answer: \\boxed{42}", "Answer: x = 42",
        "Answer: 42 degrees", "Answer: 42\\text{ cm}", "Answer:\n\n42", "Answer: 41\nAnswer: 42", "Answer: \\text{42}",
        "Answer: the value $42$ of it", "Answer: 4,2"})
    EXPECT_EQ(verdict("dapo", right, "42"), 1.0) << right;
  for (const char* wrong : {"42", "Answer: 43", "Answer: 42\nAnswer: ", "Answer: 42.0", "Answer: 42\nAnswer: 43", "",
                            "Answer 42", "Answer: 42 apples"})
    EXPECT_EQ(verdict("dapo", wrong, "42"), -1.0) << wrong;
  EXPECT_EQ(verdict("dapo", "Answer: 1,234", "1234"), 1.0);
  EXPECT_EQ(verdict("dapo", "Answer: -1,234", "-1234"), -1.0) << "as the verifier: commas go only where digits stay";
  EXPECT_EQ(verdict("dapo", "Answer: 42" + std::string(290, '.') + "\n", "42"), -1.0);
  EXPECT_EQ(verdict("dapo", "Answer: 42\n" + std::string(280, '.'), "42"), 1.0);
  EXPECT_EQ(verdict("dapo", "Answer: 42\n" + std::string(295, '.'), "42"), -1.0) << "only the last 300 characters";
  std::string umlauts = "Answer: 42\n";
  for (int i = 0; i < 280; ++i) umlauts += "\xc3\xa4";
  EXPECT_EQ(verdict("dapo", umlauts, "42"), 1.0) << "characters, not bytes";
  EXPECT_EQ(dapo_gold("3.7"), "3");
  EXPECT_EQ(dapo_gold(" 1e3 "), "1000");
  EXPECT_EQ(dapo_gold("-0.5"), "0");
  EXPECT_EQ(dapo_gold("1e22"), "10000000000000000000000");
  for (const char* none : {"", "x", "1/2", "inf", "nan", "0x10", "3 4"}) {
    EXPECT_EQ(dapo_gold(none), std::nullopt) << none;
    EXPECT_FALSE(is_gradable({.type = RewardType::dapo}, none)) << none;
    EXPECT_EQ(verdict("dapo", "Answer: 3", none), std::nullopt) << none;
  }
}

TEST(Gsm8k, IsStrict) {
  EXPECT_EQ(verdict("gsm8k", "2+2=4\n#### 4", "4"), 1.0);
  EXPECT_EQ(verdict("gsm8k", "#### 3 #### 1,004", "1004"), 1.0);
  EXPECT_EQ(verdict("gsm8k", "#### -7", "so it is #### -7"), 1.0);
  EXPECT_EQ(verdict("gsm8k", "#### 4 #### four", "4"), 1.0) << "the last that has a number";
  EXPECT_EQ(verdict("gsm8k", "####4", "4"), 0.0);
  EXPECT_EQ(verdict("gsm8k", "the answer is 4", "4"), 0.0);
  EXPECT_EQ(verdict("gsm8k", "#### 4.0", "4"), 0.0) << "as text";
  EXPECT_EQ(verdict("gsm8k", "#### 4" + std::string(400, ' '), "4"), 0.0);
  EXPECT_EQ(verdict("gsm8k", "#### 4", ""), 0.0);
  EXPECT_FALSE(is_gradable({.type = RewardType::gsm8k}, ""));
}

TEST(F1, WordsInCommon) {
  EXPECT_EQ(verdict("f1", "The Eiffel Tower!", "eiffel tower"), 1.0);
  EXPECT_NEAR(verdict("f1", "a tall tower", "the tower in Paris").value(), 2 * (0.5 * 1.0 / 3) / (0.5 + 1.0 / 3),
              1e-12);
  EXPECT_NEAR(verdict("f1", "a b b", "b b b c").value(), 2 * (1.0 * 0.5) / 1.5, 1e-12);
  EXPECT_EQ(verdict("f1", "yes it is", "yes"), 0.0);
  EXPECT_EQ(verdict("f1", "Yes.", "yes"), 1.0);
  EXPECT_EQ(verdict("f1", "no", "noanswer"), 0.0);
  EXPECT_EQ(verdict("f1", "", "word"), 0.0);
  EXPECT_EQ(verdict("boxed_f1", "no words but \\boxed{eiffel tower}", "Eiffel Tower"), 1.0);
  EXPECT_EQ(verdict("boxed_f1", "eiffel tower", "eiffel tower"), 0.0) << "nothing is boxed";
}

TEST(Gpqa, ALetterThatStandsAlone) {
  for (const char* right :
       {"The answer is C", "Answer: C.", "answer is (C)", "**Answer: C**", "I choose option C, not B", "so \\boxed{C}",
        "\\boxed{\\text{C}}", "A, B or C", "The answer depends on B. It is C", "<think>Answer: A</think>Answer: C",
        "Answer: A. No wait, answer: C", "final answer is: $C$", "the answer is c.", "I think it must be C"})
    EXPECT_EQ(verdict("gpqa", right, "C"), 1.0) << right;
  for (const char* wrong :
       {"The answer is B", "Cats", "", "the answer depends", "Answer: CAB", "\\boxed{C} then \\boxed{B}"})
    EXPECT_EQ(verdict("gpqa", wrong, "C"), 0.0) << wrong;
  EXPECT_EQ(verdict("gpqa", "the answer depends on the case", "D"), 0.0);
  EXPECT_EQ(verdict("gpqa", "The answer is a bit longer", "A"), 0.0);
  EXPECT_EQ(verdict("gpqa", "I do not know", "I"), 0.0);
  for (const char* label : {"c", "(C)", "\\boxed{C}", "#### C"})
    EXPECT_EQ(verdict("gpqa", "Answer: C", label), 1.0) << label;
  for (const char* label : {"", "CO2", "K", "A B", "2"}) {
    EXPECT_FALSE(is_gradable({.type = RewardType::gpqa}, label)) << label;
    EXPECT_EQ(verdict("gpqa", "Answer: C", label), std::nullopt) << label;
  }
}

TEST(Regex, TheLabelIsSearchedFor) {
  EXPECT_EQ(verdict("regex", "it is 2024-01-31", R"(\b\d{4}-\d\d-\d\d\b)"), 1.0);
  EXPECT_EQ(verdict("regex", "it is 24", R"(^\d+)"), 0.0);
  EXPECT_EQ(verdict("regex", "x\xff y", "y"), 1.0) << "what is no UTF-8 does not stop it";
  for (const char* label : {"", "(", "*", "(?P<n"}) {
    EXPECT_FALSE(is_gradable({.type = RewardType::regex}, label)) << label;
    EXPECT_EQ(verdict("regex", "x", label), std::nullopt) << label;
  }
  const auto begin = std::chrono::steady_clock::now();
  verdict("regex", std::string(50'000, 'a') + "!", "(a|aa)+$");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "backtracking is bounded";
}

TEST(JsonSchema, TheResponseFitsTheLabel) {
  const std::string schema = R"({"type": "object", "required": ["n"], "additionalProperties": false, "properties":
      {"n": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}},
      "$defs": {"tag": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}}, "title": "says nothing"})";
  for (const char* right :
       {R"({"n": 1})", R"( {"n": 2.0, "tags": ["ab", "c"]} )", "Here:\n```json\n{\"n\": 3}\n```\nDone."})
    EXPECT_EQ(verdict("json_schema", right, schema), 1.0) << right;
  for (const char* wrong : {"", "n", "[1]", "{}", R"({"n": 0})", R"({"n": 1.5})", R"({"n": "1"})",
                            R"({"n": 1, "m": 1})", R"({"n": 1, "tags": ["abcd"]})", R"({"n": 1, "tags": ["A"]})",
                            R"({"n": 1, "n": 1})", R"({"n": 1, "tags": ["a", "b", "c"]})", "{\"n\": 1} and more"})
    EXPECT_EQ(verdict("json_schema", wrong, schema), 0.0) << wrong;
  EXPECT_EQ(verdict("json_schema", "3", R"({"anyOf": [{"type": "string"}, {"enum": [3, 4]}]})"), 1.0);
  EXPECT_EQ(verdict("json_schema", "3", R"({"oneOf": [{"type": "number"}, {"const": 3}]})"), 0.0);
  EXPECT_EQ(verdict("json_schema", "3", R"({"not": {"multipleOf": 2}})"), 1.0);
  EXPECT_EQ(verdict("json_schema", "[1, 1]", R"({"uniqueItems": true})"), 0.0);
  EXPECT_EQ(verdict("json_schema", "[1, \"a\", 2]",
                    R"({"prefixItems": [{}, {"type": "string"}], "items": {"type": "integer"}})"),
            1.0);
  for (const char* unusable : {"", "not json", "[]", R"({"unevaluatedProperties": false})", R"({"type": "integr"})",
                               R"({"$ref": "#"})", R"({"required": "n"})", R"({"$ref": "http://x/y"})"}) {
    EXPECT_EQ(verdict("json_schema", "{\"n\": 1}", unusable), std::nullopt) << unusable;
    EXPECT_FALSE(is_gradable({.type = RewardType::json_schema}, unusable)) << unusable;
  }
}

TEST(JsonSchema, HostileTextsEndInAVerdict) {
  std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_EQ(verdict("json_schema", deep, R"({"type": "array"})"), 0.0) << "too deep to be read";
  const std::string nested = std::string(200, '[') + std::string(200, ']');
  EXPECT_EQ(verdict("json_schema", nested, R"({"items": {"$ref": "#"}})"), std::nullopt) << "a hundred schemas at most";
  std::string many = "[0";
  for (int i = 1; i < 100'000; ++i) many += "," + std::to_string(i);
  EXPECT_EQ(verdict("json_schema", many + "]", R"({"uniqueItems": true})"), std::nullopt) << "too much work";
}

TEST(Shape, FormatRepetitionAndLength) {
  EXPECT_EQ(verdict("format", "<think>a\nb</think>c", ""), 1.0);
  for (const char* wrong :
       {"", "a", "<think>a", "x<think>a</think>", "<think>a<think>b</think>", "<think>a</think><think>"})
    EXPECT_EQ(verdict("format", wrong, ""), 0.0) << wrong;
  EXPECT_EQ(verdict("repetition", "a b c d", ""), 0.0);
  EXPECT_EQ(verdict("repetition", "a b", ""), 0.0);
  EXPECT_DOUBLE_EQ(verdict("repetition", "x X x  x\nx", "").value(), -(1 - 1.0 / 3));
  EXPECT_DOUBLE_EQ(verdict("repetition", "a b c a b c", "").value(), -(1 - 3.0 / 4));
  const auto length = [](int64_t tokens, const std::string& label) {
    return grade({.type = RewardType::length}, {.label = label, .length = tokens});
  };
  EXPECT_EQ(length(100, "100"), 1.0);
  EXPECT_EQ(length(50, " 100 "), 0.5);
  EXPECT_EQ(length(1000, "100"), 0.0);
  for (const char* label : {"", "0", "-5", "1.5", "x"}) EXPECT_EQ(length(1, label), std::nullopt) << label;
  const auto overlong = [](int64_t tokens) {
    return grade({.type = RewardType::soft_overlong, .overlong_length = 100, .overlong_cache = 20}, {.length = tokens});
  };
  EXPECT_EQ(overlong(80), 0.0);
  EXPECT_EQ(overlong(85), -0.25);
  EXPECT_EQ(overlong(100), -1.0);
  EXPECT_EQ(overlong(101), -1.0);
}

TEST(Random, IsCountedAndFair) {
  double sum = 0, texts = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const RuleSample sample{
        .response = std::to_string(i) == "7" ? "" : "r", .rollout = 3, .group = i / 8, .index = i % 8};
    const double drawn = grade({.type = RewardType::random}, sample).value();
    EXPECT_EQ(drawn, grade({.type = RewardType::random}, sample)) << "the same again";
    sum += drawn;
    const std::string response = std::to_string(i);
    texts += grade({.type = RewardType::deterministic_random}, {.response = response, .prompt = "p"}).value();
  }
  EXPECT_NEAR(sum / 4000, 0.5, 0.04);
  EXPECT_NEAR(texts / 4000, 0.5, 0.04);
  const RuleSample one{.response = "x", .rollout = 1}, later{.response = "x", .rollout = 2, .index = 5};
  EXPECT_EQ(grade({.type = RewardType::zero}, one), 0.0);
  EXPECT_EQ(grade({.type = RewardType::deterministic_random}, one),
            grade({.type = RewardType::deterministic_random}, later));
}

}  // namespace
}  // namespace lockstep::rl
