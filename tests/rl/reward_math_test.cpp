// --rm-type math: the decided verdicts. docs/rewards.md shows the same table.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rl/reward/math.h"
#include "rl/reward/math_equality.h"

namespace lockstep::rl {
namespace {

bool same(const std::string& wanted, const std::string& given, double tolerance = 0) {
  Work work;
  const MathAnswer right = parse_math_answer(wanted, work);
  return same_math(right, parse_math_answer(given, work), tolerance, work);
}

struct Row {
  const char* label;
  std::vector<const char*> answers;
};

// As the label and answer of a response; labels also between dollar signs.
void expect_rows(const std::vector<Row>& rows, float reward) {
  for (const Row& row : rows)
    for (const char* answer : row.answers) {
      const std::string response = std::string("so it is \\boxed{") + answer + "}.";
      EXPECT_EQ(grade_math(response, row.label), reward) << row.label << " : " << answer;
      EXPECT_EQ(grade_math(response, std::string("$") + row.label + "$"), reward) << row.label << " : " << answer;
      EXPECT_EQ(grade_math(response, std::string("\\boxed{") + row.label + "}"), reward)
          << row.label << " : " << answer;
    }
}
void expect_equal(const std::vector<Row>& rows) {
  expect_rows(rows, 1.0f);
}
void expect_unequal(const std::vector<Row>& rows) {
  expect_rows(rows, 0.0f);
}

TEST(Math, NumberForms) {
  expect_equal({{"42", {"42", "42.0", "042", "+42"}},
                {"1234", {"1,234", "1{,}234", "\\$1,234", "1234\\text{ dollars}", "1 234", "1,\\!234", "1{,}234.0"}},
                {"1234.5", {"1,234.50"}},
                {"-3", {"- 3", "−3"}},
                {"0", {"-0"}},
                {"7\\!", {"7"}},
                {"1000", {"1e3", "10^3"}},
                {"2024", {"2024."}}});
  expect_unequal({{"42", {"42.0000004", "42.00000001", "-42", "43"}}, {"1234", {"1\\,234", "12 34", "234", "1234x"}}});
}

TEST(Math, Fractions) {
  expect_equal({{"1/2", {"0.5", ".5", "\\frac12", "\\tfrac{1}{2}", "\\dfrac24"}},
                {"-\\frac12", {"\\frac{-1}{2}", "\\frac{1}{-2}", "-0.5"}},
                {"\\frac72", {"3\\frac12", "3 1/2", "3\\frac{1}{2}", "3.5"}},
                {"7/2", {"3 1/2", "3\\frac12"}},
                {"-7/2", {"-3\\frac12"}},
                {"\\frac ab", {"a/b"}}});
  expect_unequal({{"\\frac{1}{2}", {"2", "1"}},
                  {"1/3", {"0.333", "0.333333", "0.\\overline3"}},
                  {"\\frac{12}{3}", {"\\frac12 3"}},
                  {"\\frac ab", {"b/a"}}});
}

TEST(Math, PercentUnitsDegrees) {
  expect_equal(
      {{"50\\%", {"50", "0.5", "50\\%", "\\frac{1}{2}"}},
       {"50", {"50\\%"}},
       {"0.5", {"50\\%"}},
       {"10", {"10\\text{ cm}", "10\\ \\mathrm{cm}", "10 cm", "10\\text{ cm}^2", "10 m/s", "10\\text{ km}/\\text{h}"}},
       {"10\\text{ cm}", {"10"}},
       {"90^\\circ", {"90", "90^{\\circ}", "90\\text{ degrees}", "90°"}},
       {"25", {"25^\\circ C"}},
       {"5000000", {"5\\text{ million}", "5 million dollars"}}});
  expect_unequal({{"50\\%", {"5", "0.05"}},
                  {"10", {"10x", "10m", "10 apples", "10\\text{ or more}", "5/\\text{s}"}},
                  {"n\\text{ is odd}", {"n\\text{ is even}", "n"}}});
}

TEST(Math, RootsAndPi) {
  expect_equal({{"\\sqrt8", {"2\\sqrt2", "2\\sqrt{2}", "\\sqrt{8}", "2sqrt(2)", "√8"}},
                {"\\frac{\\sqrt2}2", {"1/\\sqrt2", "\\sqrt{1/2}", "\\sqrt{0.5}"}},
                {"2\\pi", {"2 \\pi", "2\\cdot\\pi", "2pi", "2π"}},
                {"\\frac\\pi2", {"\\pi/2", "0.5\\pi"}},
                {"\\sqrt2-1", {"\\frac{1}{1+\\sqrt2}", "-1+\\sqrt{2}"}},
                {"\\sqrt{6}", {"\\sqrt2\\sqrt3", "\\sqrt2\\cdot\\sqrt3"}},
                {"2", {"\\sqrt[3]{8}", "\\sqrt4", "4^{1/2}", "8^{1/3}"}},
                {"2\\sqrt[3]{2}", {"\\sqrt[3]{16}"}},
                {"\\frac{1}{\\sqrt2+\\sqrt3+\\sqrt5}", {"\\frac{\\sqrt{12}+\\sqrt{18}-\\sqrt{30}}{12}"}}});
  expect_unequal({{"2\\sqrt2", {"2.828", "2.828427", "-2\\sqrt2"}},
                  {"\\pi", {"3.14", "3.141593", "22/7"}},
                  {"e", {"2.718"}},
                  {"i", {"\\sqrt{-1}"}},
                  {"\\sqrt{x^2}", {"x"}}});
}

TEST(Math, Algebra) {
  expect_equal({{"(x+1)^2", {"x^2+2x+1", "x**2+2*x+1", "x^{2}+1+x\\cdot 2"}},
                {"x^2+1", {"1+x^2"}},
                {"ab", {"a\\cdot b", "a b", "ba"}},
                {"2+3i", {"3i+2"}},
                {"5", {"x=5", "x = 5.0"}},
                {"x=5", {"5"}},
                {"y=2x+1", {"2x+1", "2x+1=y", "y=1+2x"}},
                {"\\frac{1}{x}-\\frac{1}{y}", {"\\frac{y-x}{xy}"}},
                {"x_1+x_2", {"x_2+x_1", "x_{1}+x_{2}"}},
                {"\\sin(x+1)+2", {"2+\\sin(1+x)"}},
                {"e^{2x}", {"e^{x+x}"}},
                {"|x-1|", {"|1-x|"}}});
  expect_unequal({{"2x", {"2y", "2", "x"}},
                  {"x=1", {"y=1", "x=2"}},
                  {"\\sin^2x+\\cos^2x", {"1"}},
                  {"x^2", {"x^3", "x_2", "2x"}},
                  {"x_1", {"x_2", "x"}},
                  {"f'", {"f"}},
                  {"\\sin x", {"\\cos x"}},
                  {"\\log x", {"\\ln x"}},
                  {"|x|", {"x"}}});
}

TEST(Math, ExactFunctions) {
  expect_equal({{"1500", {"1.5\\times10^3"}},
                {"120", {"5!"}},
                {"10", {"\\binom52", "\\binom{5}{3}"}},
                {"3", {"\\log_2 8", "\\log_{2}{8}", "\\log_28"}},
                {"-2", {"\\log_{10}0.01"}},
                {"2^{100}", {"1267650600228229401496703205376"}},
                {"3:4", {"3/4"}},
                {"\\infty", {"+\\infty"}}});
  expect_unequal({{"16_8", {"16"}}, {"\\infty", {"-\\infty"}}, {"3:4", {"4:3"}}, {"1:2:3", {"1/6"}}, {"3", {"3!!"}}});
}

TEST(Math, SetsTuplesIntervals) {
  expect_equal(
      {{"{1,2}", {"1,2", "2,1"}},
       {"\\{1,2\\}", {"1,2", "\\{2,1\\}", "{2,1}"}},
       {"1,2", {"1 \\text{ and } 2", "2,1", "1 and 2", "1\\text{ or }2", "x=1,x=2", "1, \\text{and } 2"}},
       {"1,2,3", {"1, 2, and 3"}},
       {"(1,2)", {"(1, 2)", "(1.0,2)", "1,2", "(x,y)=(1,2)", "\\left(1,2\\right)"}},
       {"[0,1)", {"[0,1)", "[0, 1.0)", "x \\in [0,1)"}},
       {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        {"\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}", "\\begin{bmatrix}1.0 & 2 \\\\ 3 & \\frac82 \\\\\\end{bmatrix}",
         "\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)"}},
       {"x>0", {"(0,\\infty)", "0<x", "x > 0"}},
       {"0\\le x<1", {"[0,1)", "1>x\\ge 0"}},
       {"x\\leq 2", {"(-\\infty,2]"}},
       {"(-\\infty,0)\\cup(1,\\infty)", {"(1,\\infty)\\cup(-\\infty,0)", "(1,+\\infty)\\cup(-\\infty,0)"}},
       {"\\pm2", {"2,-2", "-2, 2", "\\pm 2", "x=\\pm 2"}},
       {"1\\pm\\sqrt2", {"1+\\sqrt2, 1-\\sqrt2"}},
       {"\\emptyset", {"\\{\\}", "\\varnothing"}},
       {"\\{100,200\\}", {"\\{200,100\\}"}},
       {"(1,234)", {"(1, 234.0)"}}});
  expect_unequal({{"(1,2)", {"(2,1)", "2,1", "[1,2]", "(1,2,3)", "\\{1,2\\}", "12"}},
                  {"[0,1)", {"(0,1)", "[0,1]"}},
                  {"(0,\\infty)", {"x>0"}},
                  {"x>0", {"[0,\\infty)", "(-\\infty,0)", "x<0", "y>0"}},
                  {"2x>4", {"(4,\\infty)"}},
                  {"\\pm2", {"2"}},
                  {"1,2", {"1", "1,2,2", "1,3"}},
                  {"(3, 4)", {"4", "(34)", "34"}},
                  {"\\begin{pmatrix}1\\\\2\\end{pmatrix}", {"\\begin{pmatrix}1&2\\end{pmatrix}", "(1,2)"}},
                  {"\\{1,2\\}", {"(1,2)", "\\{1,2,3\\}"}}});
}

TEST(Math, Texts) {
  expect_equal({{"A", {"\\text{A}", "(A)", "\\text{(A)}", "a", "\\textbf{(A)}", "\\mathrm{A}"}},
                {"Yes", {"yes", "\\text{Yes}", "\\text{yes.}"}},
                {"East", {"east"}},
                {"\\mathbf7", {"7"}},
                {"\\left(1\\right)", {"1"}},
                {"no solution", {"\\text{No solution}"}},
                {"是", {"是"}}});
  expect_unequal({{"no solution", {"None", "0"}},
                  {"A", {"B", "AB"}},
                  {"East", {"West", "seat"}},
                  {"Yes", {"No", "Yes, but"}},
                  {"\\sum_{k=1}^n k", {"\\sum_{k=1}^m k"}}});
}

TEST(Math, WhatIsReadOfAResponse) {
  EXPECT_EQ(grade_math("it is 5", "5"), 0.0f);
  EXPECT_EQ(grade_math("#### 5", "5"), 0.0f);
  EXPECT_EQ(grade_math("\\boxed 5", "5"), 0.0f);
  EXPECT_EQ(grade_math("\\boxed{5", "5"), 0.0f);
  EXPECT_EQ(grade_math("\\boxed{5} or rather \\boxed{6}", "5"), 0.0f);
  EXPECT_EQ(grade_math("\\boxed{6} or rather \\boxed{5}", "5"), 1.0f);
  EXPECT_EQ(grade_math("\\boxed{}", "5"), 0.0f);
  EXPECT_EQ(grade_math("\\boxed{5}", "2+3\n#### 5"), 1.0f);
  for (const char* none : {"", "  ", "\\boxed{}", "\\boxed{5", "####"})
    EXPECT_EQ(grade_math("\\boxed{5}", none), std::nullopt);
}

TEST(Math, NumbersOfJsonLabels) {
  EXPECT_EQ(grade_math("\\boxed{1{,}000{,}000}", "1e6"), 1.0f);
  EXPECT_EQ(grade_math("\\boxed{3.5}", "3.50"), 1.0f);
  EXPECT_EQ(grade_math("\\boxed{0.00025}", "2.5e-4"), 1.0f);
  EXPECT_EQ(grade_math("\\boxed{6}", "1e6"), 0.0f);
}

TEST(Math, ToleranceIsForNumbersOnly) {
  for (const auto& [label, answer] :
       std::vector<std::pair<const char*, const char*>>{{"1/3", "0.333"},
                                                        {"2\\sqrt2", "2.828"},
                                                        {"\\pi", "3.14"},
                                                        {"e", "2.718"},
                                                        {"\\sin 1", "0.8415"},
                                                        {"\\log_2 3", "1.585"},
                                                        {"(\\frac13, 2)", "(0.333, 2)"}}) {
    EXPECT_FALSE(same(label, answer)) << label;
    EXPECT_TRUE(same(label, answer, 1e-2)) << label;
    EXPECT_FALSE(same(label, answer, 1e-6)) << label;
  }
  EXPECT_FALSE(same("0", "0.001", 0.1));
  EXPECT_FALSE(same("x", "1.001x", 0.1));
  EXPECT_FALSE(same("\\infty", "5", 0.1));
  EXPECT_FALSE(same("1/0", "5", 0.1));
}

// Symmetric but for chains; anything equals itself.
TEST(Math, EqualityIsSymmetric) {
  const char* const answers[] = {"42",
                                 "42.0",
                                 "\\frac12",
                                 "50\\%",
                                 "0.5",
                                 "1,2",
                                 "2,1",
                                 "(1,2)",
                                 "\\{1,2\\}",
                                 "[0,1)",
                                 "x=5",
                                 "5",
                                 "y=2x+1",
                                 "2x+1",
                                 "\\sqrt8",
                                 "2\\sqrt2",
                                 "\\pi",
                                 "\\pm2",
                                 "2,-2",
                                 "A",
                                 "\\text{(A)}",
                                 "east",
                                 "\\emptyset",
                                 "\\{\\}",
                                 "16_8",
                                 "1/0",
                                 "\\foo{1}",
                                 "x^2",
                                 "10\\text{ cm}",
                                 "3 1/2",
                                 "7/2",
                                 "a\\cdot b",
                                 "ab",
                                 "no solution",
                                 "\\infty",
                                 "+\\infty",
                                 "1\\,234",
                                 "1234",
                                 "0.\\overline3",
                                 "1e3",
                                 "(x,y)=(1,2)",
                                 "x<1",
                                 "\\begin{pmatrix}1&2\\end{pmatrix}",
                                 "\\begin{bmatrix}1&2\\end{bmatrix}"};
  for (const char* a : answers) {
    EXPECT_TRUE(same(a, a)) << a;
    for (const char* b : answers) EXPECT_EQ(same(a, b), same(b, a)) << a << " : " << b;
  }
}

}  // namespace
}  // namespace lockstep::rl
