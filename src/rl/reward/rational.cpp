#include "rl/reward/rational.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace lockstep::rl {

namespace {

int64_t cost_of_product(const Integer& a, const Integer& b) {
  return kLimbBits + limbs(a) * limbs(b);
}

std::optional<Integer> product(const Integer& a, const Integer& b, Work& work) {
  if (!work.spend(cost_of_product(a, b)) || (limbs(a) + limbs(b) - 2) * kLimbBits > kMaxBits) return std::nullopt;
  return a * b;
}

// The library takes a step over the longer number for every bit of it; one division makes them equally long first.
std::optional<Integer> common_factor(Integer a, Integer b, Work& work) {
  if (limbs(a) < limbs(b)) std::swap(a, b);
  if (b == 0) return abs(a);
  if (limbs(b) == 1 && abs(b) == 1) return Integer(1);
  if (!work.spend(kLimbBits * limbs(a) * limbs(b) + 2 * kLimbBits * limbs(b) * limbs(b))) return std::nullopt;
  return gcd(Integer(a % b), b);
}

double magnitude(const Integer& n, int64_t& exponent) {
  constexpr int64_t kKept = 64;
  const int64_t bits = n == 0 ? 0 : static_cast<int64_t>(msb(abs(n))) + 1;
  exponent = std::max<int64_t>(0, bits - kKept);
  const Integer high = abs(n) >> static_cast<unsigned>(exponent);
  return high.convert_to<double>();
}

std::string hex(const Integer& n) {
  return (n < 0 ? "-" : "") + Integer(abs(n)).str(0, std::ios_base::hex);
}

}  // namespace

std::optional<Rational> Rational::reduced(Integer numerator, Integer denominator, Work& work) {
  if (denominator == 0) return std::nullopt;
  const auto common = common_factor(numerator, denominator, work);
  if (!common || !work.spend(cost_of_product(numerator, *common) + cost_of_product(denominator, *common)))
    return std::nullopt;
  Rational result;
  result.numerator_ = *common == 1 ? std::move(numerator) : Integer(numerator / *common);
  result.denominator_ = *common == 1 ? std::move(denominator) : Integer(denominator / *common);
  if (result.denominator_ < 0) {
    result.numerator_ = -result.numerator_;
    result.denominator_ = -result.denominator_;
  }
  if (!fits(result.numerator_) || !fits(result.denominator_)) return std::nullopt;
  return result;
}

double Rational::approximate() const {
  int64_t above = 0, below = 0;
  const double a = magnitude(numerator_, above), b = magnitude(denominator_, below);
  return sign() * std::ldexp(a / b, static_cast<int>(above - below));
}

std::string Rational::key() const {
  return hex(numerator_) + "/" + hex(denominator_);
}

Rational Rational::operator-() const {
  Rational result = *this;
  result.numerator_ = -result.numerator_;
  return result;
}

std::optional<Rational> add(const Rational& a, const Rational& b, Work& work) {
  const auto x = product(a.numerator(), b.denominator(), work), y = product(b.numerator(), a.denominator(), work);
  const auto below = product(a.denominator(), b.denominator(), work);
  if (!x || !y || !below) return std::nullopt;
  return Rational::reduced(*x + *y, *below, work);
}

// Crosswise reduced, the product is in lowest terms.
std::optional<Rational> multiply(const Rational& a, const Rational& b, Work& work) {
  const auto x = Rational::reduced(a.numerator(), b.denominator(), work);
  const auto y = Rational::reduced(b.numerator(), a.denominator(), work);
  if (!x || !y) return std::nullopt;
  const auto above = product(x->numerator(), y->numerator(), work);
  const auto below = product(x->denominator(), y->denominator(), work);
  if (!above || !below || !fits(*above) || !fits(*below)) return std::nullopt;
  Rational result;
  result.numerator_ = *above;
  result.denominator_ = *below;
  return result;
}

std::optional<Rational> invert(const Rational& a, Work& work) {
  return Rational::reduced(a.denominator(), a.numerator(), work);
}

std::optional<Rational> power(const Rational& a, int64_t exponent, Work& work) {
  if (a.sign() == 0) return exponent > 0 ? std::optional(a) : std::nullopt;
  if (a.is_integer() && abs(a.numerator()) == 1) return exponent % 2 == 0 ? Rational(1) : a;
  if (exponent < -kMaxBits || exponent > kMaxBits) return std::nullopt;
  std::optional<Rational> square = exponent < 0 ? invert(a, work) : a, result = Rational(1);
  for (int64_t left = std::abs(exponent); left > 0 && square && result; left /= 2) {
    if (left % 2 == 1) result = multiply(*result, *square, work);
    if (left > 1) square = multiply(*square, *square, work);
  }
  return square ? result : std::nullopt;
}

std::optional<Rational> parse_number(const std::string& text, Work& work) {
  const size_t end = std::min(text.find('e'), text.size()), point = std::min(text.find('.'), end);
  int64_t exponent = 0;
  if (end < text.size()) {
    const char* first = text.data() + end + 1;
    if (*first == '+') ++first;
    const auto read = std::from_chars(first, text.data() + text.size(), exponent);
    if (read.ec != std::errc() || exponent < -kMaxDigits || exponent > kMaxDigits) return std::nullopt;
  }
  std::string digits = text.substr(0, point);
  if (point < end) {
    digits += text.substr(point + 1, end - point - 1);
    exponent -= static_cast<int64_t>(end - point - 1);
  }
  if (digits.empty()) return std::nullopt;
  // The library takes a number that begins with 0 for an octal one.
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  const auto length = static_cast<int64_t>(digits.size()), zeros = std::abs(exponent);
  if (length + zeros > kMaxDigits || !work.spend(kLimbBits + (length * length + zeros * zeros) / 16))
    return std::nullopt;
  const Integer scale = pow(Integer(10), static_cast<unsigned>(zeros));
  if (exponent < 0) return Rational::reduced(Integer(digits), scale, work);
  const auto value = product(Integer(digits), scale, work);
  return value ? std::optional(Rational(*value)) : std::nullopt;
}

}  // namespace lockstep::rl
