// Exact fractions of bounded size.
//
//   bounds   numerators and denominators of at most kMaxDigits digits. An operation pays for itself in `work` before it
//            begins; nullopt where a bound would be passed, the work is spent, or there is no result (1 / 0).
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "rl/reward/work.h"

namespace lockstep::rl {

using Integer = boost::multiprecision::number<boost::multiprecision::cpp_int_backend<>, boost::multiprecision::et_off>;

inline constexpr int64_t kMaxDigits = 10'000;
inline constexpr int64_t kLimbBits = 64;
inline constexpr int64_t kMaxBits = kMaxDigits * 3322 / 1000 + 1;  // log2(10) = 3.3219...

// Words of 64 bits that n takes.
inline int64_t limbs(const Integer& n) {
  return static_cast<int64_t>(n.backend().size());
}
inline bool fits(const Integer& n) {
  return (limbs(n) - 1) * kLimbBits < kMaxBits;
}

class Rational {
 public:
  Rational() = default;
  explicit Rational(Integer value) : numerator_(std::move(value)) {}

  // numerator / denominator in lowest terms.
  static std::optional<Rational> reduced(Integer numerator, Integer denominator, Work& work);

  const Integer& numerator() const { return numerator_; }
  const Integer& denominator() const { return denominator_; }  // above 0
  bool is_integer() const { return denominator_ == 1; }
  int sign() const { return numerator_.sign(); }
  double approximate() const;  // infinite or 0 beyond what a double holds
  std::string key() const;     // in hexadecimal digits; equal for equal fractions only

  Rational operator-() const;
  bool operator==(const Rational&) const = default;

 private:
  friend std::optional<Rational> multiply(const Rational& a, const Rational& b, Work& work);

  Integer numerator_ = 0, denominator_ = 1;
};

std::optional<Rational> add(const Rational& a, const Rational& b, Work& work);
std::optional<Rational> multiply(const Rational& a, const Rational& b, Work& work);
std::optional<Rational> invert(const Rational& a, Work& work);
std::optional<Rational> power(const Rational& a, int64_t exponent, Work& work);  // nullopt also for 0^0

// A number as latex_tokens.h writes it: digits, at most one point, perhaps e and an integer.
std::optional<Rational> parse_number(const std::string& text, Work& work);

}  // namespace lockstep::rl
