// --rm-type math on texts that somebody made to hurt: bounds are kept, nothing hangs, no stack is used up.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rl/reward/math.h"
#include "rl/reward/math_equality.h"
#include "rl/reward/math_expression.h"

namespace lockstep::rl {
namespace {

std::string times(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::optional<float> grade(const std::string& label, const std::string& answer) {
  return grade_math("\\boxed{" + answer + "}", label);
}

TEST(MathLimits, NumbersHaveAtMostTenThousandDigits) {
  const std::string most = "1" + std::string(9'999, '0'), more = most + "0";
  EXPECT_EQ(grade("10^{9999}", most), 1.0f);
  EXPECT_EQ(grade(most, most + ".0"), 0.0f) << "10,001 digits";
  EXPECT_EQ(grade("10^{10000}", more), 0.0f);
  EXPECT_EQ(grade(more, more), 1.0f) << "texts are compared still";
  EXPECT_EQ(grade("1e9999", "10^{9999}"), 1.0f);
  EXPECT_EQ(grade("1e10001", "10^{10001}"), 0.0f);
  EXPECT_EQ(grade("2^{33000}/2^{32999}", "2"), 1.0f);
  EXPECT_EQ(grade("2^{40000}/2^{39999}", "2"), 0.0f);
  EXPECT_EQ(grade("3248!/3247!", "3248"), 1.0f);
  EXPECT_EQ(grade("3300!/3299!", "3300"), 0.0f);
}

TEST(MathLimits, NestingIsAtMostAHundred) {
  static_assert(kMaxNesting == 100);
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"(", ")"}, {"{", "}"}, {"\\sqrt{", "}"}, {"1^{", "}"}, {"\\frac{", "}{1}"}, {"\\text{", "}"}}) {
    const auto nested = [&](size_t depth) { return times(depth, open) + "1" + times(depth, close); };
    EXPECT_EQ(grade("1", nested(45)), 1.0f) << open;
    EXPECT_EQ(grade("1", nested(120)), 0.0f) << open;
    EXPECT_EQ(grade(nested(120), nested(120)), 1.0f) << open;
  }
}

TEST(MathLimits, PartsAndBytesAreBounded) {
  EXPECT_EQ(grade(times(400, "1,") + "2", "2," + times(399, "1,") + "1"), 1.0f);
  EXPECT_EQ(grade(times(600, "1,") + "2", "2," + times(599, "1,") + "1"), 0.0f);
  const std::string sum = times(10'000, "1+") + "0";
  EXPECT_EQ(grade("10000", sum), 1.0f);
  EXPECT_EQ(grade("20000", sum + "+" + sum), 0.0f);
  EXPECT_EQ(grade(sum + "+" + sum, sum + "+" + sum), 1.0f);
}

// Each beside itself and as the answer to another label.
TEST(MathLimits, HostileTextsEndInAVerdict) {
  std::vector<std::string> texts = {"99999999999999!",
                                    "\\binom{999999999999}{499999999999}",
                                    "9^{9^{9^{9}}}",
                                    "(x+y+z)^{30000}",
                                    "\\log_{1.0000001}999999999",
                                    "1e99999999999999999999",
                                    "0^{-1}",
                                    "0^0",
                                    "\\sqrt[0]{5}",
                                    "\\sqrt[99999]{5}",
                                    "1/(\\sqrt2+\\sqrt3+\\sqrt5+\\sqrt7+\\sqrt{11}+\\sqrt{13})",
                                    "\\frac1",
                                    "\\frac",
                                    "\\sqrt",
                                    "\\sqrt[",
                                    "^",
                                    "x^",
                                    "x_",
                                    "\\log_",
                                    "\\sin^",
                                    "\\begin",
                                    "\\begin{",
                                    "\\end{pmatrix}",
                                    "\\text",
                                    "\\text{",
                                    "\\left",
                                    "\\",
                                    "\\boxed",
                                    std::string("\0x\0", 3),
                                    "\xff\xfe\xc3",
                                    "$$",
                                    ".",
                                    "%",
                                    "'",
                                    "\\pm",
                                    "{,}",
                                    "(,)",
                                    ",",
                                    "=",
                                    "x=",
                                    "\\cup"};
  for (const char* part : {"(",
                           "[",
                           "{",
                           "\\{",
                           "\\frac",
                           "\\frac1",
                           "\\frac12",
                           "\\sqrt",
                           "\\sqrt[",
                           "\\sqrt3+",
                           "-",
                           "+",
                           "1+",
                           "1-",
                           "x^",
                           "x^{",
                           "2^{",
                           "9^9*",
                           "1/",
                           "x/",
                           "(x+1)",
                           "(x+1)^{99}",
                           "(\\sqrt2+1)^9",
                           "!",
                           "5!",
                           "9!+",
                           "1,",
                           ",",
                           "1 ",
                           "\\pm",
                           "\\pm1,",
                           "|",
                           "|x",
                           "_",
                           "x_",
                           "x_{",
                           "'",
                           "\\text{",
                           "\\text{a}",
                           "\\mathrm{cm}",
                           "cm",
                           "cm/",
                           "/\\text{s}",
                           "^\\circ",
                           "\\begin{pmatrix}",
                           "\\begin{pmatrix}1&",
                           "\\boxed{",
                           "\\left(",
                           "=",
                           "x=",
                           "(x=",
                           "<",
                           "1<",
                           "\\cup",
                           "(1,2)\\cup",
                           "\\sin",
                           "\\sin^2",
                           "\\log_2",
                           "\\binom",
                           "\\vec",
                           "\\overline{",
                           "7",
                           ".",
                           "1.",
                           "e",
                           "1e9",
                           "\\%",
                           "and ",
                           " or ",
                           "\\text{and}",
                           "\\,",
                           "\\!",
                           "\xcf\x80",
                           "\xe2\x88\x9a",
                           "\\infty",
                           "^",
                           "**",
                           "1\\text{ million}",
                           "%"})
    for (const size_t count : {90, 3'000, 100'000}) texts.push_back(times(count, part) + "1");
  for (const std::string& text : texts) {
    Work work;
    const MathAnswer answer = parse_math_answer(text, work);
    EXPECT_TRUE(answer.text.empty() || same_math(answer, answer, 0, work)) << text.substr(0, 50);
    EXPECT_TRUE(grade_math("\\boxed{" + text + "}", "5").has_value());
  }
}

}  // namespace
}  // namespace lockstep::rl
