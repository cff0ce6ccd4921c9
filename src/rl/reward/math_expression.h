// The value of a single mathematical expression in LaTeX or in the plain notation of programs.
//
//   understood     + - * / : ^ ! | |, \frac \binom \sqrt[n] \log_b, elementary functions; variables with subscripts,
//                  accents and primes; products without a sign (2x, ab, 2\pi); mixed numbers (3\frac12, 3 1/2).
//                  Operators of one precedence are applied from left to right: 1/2x is x/2. Without braces \frac and
//                  \binom take single digits (\frac12 is 1/2), but ^ and \sqrt take whole numbers (2^10 is 1024).
//   not understood anything else, two numbers side by side, two powers in a row, nesting deeper than kMaxNesting. The
//                  value is then unknown, which is equal to nothing.
// The time is linear in the number of tokens, but for the arithmetic of large numbers, which `work` bounds.
#pragma once

#include "rl/reward/latex_tokens.h"
#include "rl/reward/math_value.h"

namespace lockstep::rl {

inline constexpr int kMaxNesting = 100;

struct ExpressionOptions {
  int sign = 1;     // what \pm stands for; \mp for the opposite
  int nesting = 0;  // depth at which the expression begins, if it is part of another one
};

MathValue evaluate(TokenSpan tokens, const ExpressionOptions& options, Work& work);

// Greek letters and other names of variables, \infty too.
bool is_variable_command(std::string_view name);
// \vec, \overline ...: with the letters in its braces it is a variable.
bool is_accent(std::string_view name);

}  // namespace lockstep::rl
