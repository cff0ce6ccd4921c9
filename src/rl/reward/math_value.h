// What an expression stands for: its exact values at three fixed points, where every variable has a rational number of
// its own. Two expressions are one polynomial or rational function if their values agree there; a constant has the same
// value at all of them. A polynomial that is not zero has few zeros, and these points, made from the names of the
// variables by hashing, lie at none that anybody would write.
//
//   symbols   pi, e, i and infinity are variables like any other, so that what is proved about them holds for any
//             number, and no decimal fraction is equal to them. What has no exact value (sin 1, 2^n, the cube root of
//             2) is a variable named after the function and the exact values of its arguments: sin(x + 1) is sin(1 +
//             x), and no identity between functions is known.
//   unknown   a value that passed a bound of rational.h or has no meaning (1 / 0); whatever is made of it is unknown
//
// The approximate value beside it is for --math-tolerance alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rl/reward/work.h"

namespace lockstep::rl {

class MathValue {
 public:
  MathValue() = default;  // unknown
  static MathValue integer(int64_t value);
  static MathValue number(const std::string& text, Work& work);  // as latex_tokens.h writes it
  static MathValue variable(std::string_view name);

  bool known() const { return points_ != nullptr; }
  bool has_variables() const { return variables_; }    // besides pi, e and infinity
  double approximate() const { return approximate_; }  // not a number: it has variables
  bool operator==(const MathValue& other) const;       // exactly; the unknown equals nothing

  struct Points;  // math_value.cpp

 private:
  friend struct MathOps;

  std::shared_ptr<const Points> points_;
  double approximate_ = 0;
  bool variables_ = false;
};

MathValue add(const MathValue& a, const MathValue& b, Work& work);
MathValue negate(const MathValue& a, Work& work);
MathValue multiply(const MathValue& a, const MathValue& b, Work& work);
MathValue divide(const MathValue& a, const MathValue& b, Work& work);
MathValue power(const MathValue& base, const MathValue& exponent, Work& work);
MathValue root(const MathValue& a, const MathValue& degree, Work& work);
MathValue absolute(const MathValue& a, Work& work);
MathValue factorial(const MathValue& a, Work& work);
MathValue binomial(const MathValue& n, const MathValue& k, Work& work);
MathValue logarithm(const MathValue& base, const MathValue& a, Work& work);

// sin, cos, ln ... and log, whose base nobody knows.
bool is_elementary(std::string_view name);
MathValue elementary(std::string_view name, const MathValue& a, Work& work);

}  // namespace lockstep::rl
