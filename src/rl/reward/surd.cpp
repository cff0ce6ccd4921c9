#include "rl/reward/surd.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

namespace lockstep::rl {

namespace {

constexpr unsigned kSmallPrimes = 2000;

// n = outside^degree * inside.
struct Split {
  Integer outside = 1, inside;
};

// The largest r with r^degree <= n, by halving.
Integer integer_root(const Integer& n, int64_t degree) {
  Integer low = 0, high = Integer(1) << static_cast<unsigned>(msb(n) / static_cast<size_t>(degree) + 1);
  while (high - low > 1) {
    const Integer middle = (low + high) >> 1;
    (pow(middle, static_cast<unsigned>(degree)) <= n ? low : high) = middle;
  }
  return low;
}

// Takes the whole of n if it is a power; other roots than square ones are found slowly, so only of short numbers.
bool take_perfect_power(Split& split, int64_t degree, Work& work) {
  constexpr int64_t kMaxLimbs = 16;
  Integer& n = split.inside;
  const int64_t size = limbs(n);
  if (n == 1 || (degree != 2 && size > kMaxLimbs)) return true;
  if (!work.spend(kLimbBits * size * size * (degree == 2 ? 1 : kLimbBits))) return false;
  const Integer found = degree == 2 ? Integer(sqrt(n)) : integer_root(n, degree);
  if (pow(found, static_cast<unsigned>(degree)) == n) {
    split.outside *= found;
    n = 1;
  }
  return true;
}

std::optional<Split> split(Integer n, int64_t degree, Work& work) {
  Split result{.inside = std::move(n)};
  Integer& left = result.inside;
  if (!work.spend(kLimbBits + (limbs(left) > 1 ? 16 * kSmallPrimes * limbs(left) : 0))) return std::nullopt;
  for (unsigned d = 2; d < kSmallPrimes; d += d == 2 ? 1 : 2) {
    if (limbs(left) == 1 && left < d * d) break;
    if (!work.spend(kLimbBits / 4)) return std::nullopt;
    while (left % d == 0) {
      const Integer prime_power = pow(Integer(d), static_cast<unsigned>(degree));
      if (!work.spend(kLimbBits * limbs(left)) || left % prime_power != 0) break;
      left /= prime_power;
      result.outside *= d;
    }
  }
  if (!take_perfect_power(result, degree, work)) return std::nullopt;
  return result;
}

}  // namespace

Surd::Surd(Integer radicand, Rational factor) {
  if (factor.sign() != 0) terms_.push_back({std::move(radicand), std::move(factor)});
}

std::optional<Rational> Surd::rational() const {
  if (terms_.empty()) return Rational();
  if (terms_.size() > 1 || terms_[0].radicand != 1) return std::nullopt;
  return terms_[0].factor;
}

std::string Surd::key() const {
  std::string text;
  for (const Term& term : terms_) text += Rational(term.radicand).key() + " " + term.factor.key() + ";";
  return text;
}

Surd Surd::operator-() const {
  Surd result = *this;
  for (Term& term : result.terms_) term.factor = -term.factor;
  return result;
}

std::optional<Surd> add(const Surd& a, const Surd& b, Work& work) {
  Surd result;
  auto x = a.terms_.begin(), y = b.terms_.begin();
  while (x != a.terms_.end() || y != b.terms_.end()) {
    if (y == b.terms_.end() || (x != a.terms_.end() && x->radicand < y->radicand)) {
      result.terms_.push_back(*x++);
    } else if (x == a.terms_.end() || y->radicand < x->radicand) {
      result.terms_.push_back(*y++);
    } else {
      auto factor = add(x->factor, y->factor, work);
      if (!factor) return std::nullopt;
      if (factor->sign() != 0) result.terms_.push_back({x->radicand, *std::move(factor)});
      ++x, ++y;
    }
  }
  if (result.terms_.size() > Surd::kMaxTerms) return std::nullopt;
  return result;
}

namespace {

// sqrt(n) sqrt(m) = g sqrt(nm / g^2), g their greatest common divisor; two roots of negative numbers give -1 times
// that of the positive ones.
std::optional<Surd> multiply(const Surd::Term& x, const Surd::Term& y, Work& work) {
  const auto factor = multiply(x.factor, y.factor, work);
  if (!factor) return std::nullopt;
  if (x.radicand == 1 || y.radicand == 1) return Surd(x.radicand == 1 ? y.radicand : x.radicand, *factor);
  const int64_t size = std::max(limbs(x.radicand), limbs(y.radicand));
  if (!work.spend(3 * kLimbBits * size * size)) return std::nullopt;
  Integer common = gcd(x.radicand, y.radicand);
  Integer radicand = (x.radicand / common) * (y.radicand / common);
  if (!fits(radicand)) return std::nullopt;
  if (x.radicand < 0 && y.radicand < 0) common = -common;
  const auto scaled = multiply(*factor, Rational(std::move(common)), work);
  return scaled ? std::optional(Surd(std::move(radicand), *scaled)) : std::nullopt;
}

}  // namespace

std::optional<Surd> multiply(const Surd& a, const Surd& b, Work& work) {
  std::optional<Surd> result = Surd();
  for (const Surd::Term& x : a.terms())
    for (const Surd::Term& y : b.terms()) {
      const auto term = multiply(x, y, work);
      if (!term) return std::nullopt;
      result = add(*result, *term, work);
      if (!result) return std::nullopt;
    }
  return result;
}

namespace {

// A number d > 1 such that each radicand is a multiple of d or has no factor in common with it; 1 if all are 1.
Integer separating_factor(const Surd& a) {
  Integer d = 1;
  for (const Surd::Term& term : a.terms()) {
    const Integer common = d == 1 ? Integer(abs(term.radicand)) : Integer(gcd(d, term.radicand));
    if (common != 1) d = common;
  }
  return d;
}

// a with the sign of one root changed: the product of both lacks that root.
std::optional<Surd> conjugate(const Surd& a, Work& work) {
  for (const Surd::Term& term : a.terms())
    if (!work.spend(3 * kLimbBits * limbs(term.radicand) * limbs(term.radicand))) return std::nullopt;
  const bool negative = a.terms().front().radicand < 0;
  const Integer d = negative ? Integer(1) : separating_factor(a);
  std::optional<Surd> result = Surd();
  for (const Surd::Term& term : a.terms()) {
    const bool changes = negative ? term.radicand < 0 : term.radicand % d == 0;
    result = add(*result, Surd(term.radicand, changes ? -term.factor : term.factor), work);
    if (!result) return std::nullopt;
  }
  return result;
}

}  // namespace

std::optional<Surd> invert(const Surd& a, Work& work) {
  std::optional<Surd> above = Surd(Rational(1)), below = a;
  constexpr int kMaxRoots = 8;
  for (int i = 0; i < kMaxRoots && below->terms().size() > 1; ++i) {
    const auto other = conjugate(*below, work);
    if (!other) return std::nullopt;
    above = multiply(*above, *other, work);
    below = multiply(*below, *other, work);
    if (!above || !below) return std::nullopt;
  }
  if (below->terms().size() != 1) return std::nullopt;
  const Surd::Term& term = below->terms()[0];  // 1 / (q sqrt(n)) = sqrt(n) / (q n)
  const auto scaled = multiply(term.factor, Rational(term.radicand), work);
  const auto factor = scaled ? invert(*scaled, work) : std::nullopt;
  return factor ? multiply(*above, Surd(term.radicand, *factor), work) : std::nullopt;
}

std::optional<Surd> power(const Surd& a, int64_t exponent, Work& work) {
  if (const auto value = a.rational()) {
    const auto result = power(*value, exponent, work);
    return result ? std::optional(Surd(*result)) : std::nullopt;
  }
  if (exponent < -kMaxBits || exponent > kMaxBits) return std::nullopt;
  std::optional<Surd> square = exponent < 0 ? invert(a, work) : a, result = Surd(Rational(1));
  for (int64_t left = std::abs(exponent); left > 0 && square && result; left /= 2) {
    if (left % 2 == 1) result = multiply(*result, *square, work);
    if (left > 1) square = multiply(*square, *square, work);
  }
  return square ? result : std::nullopt;
}

std::optional<Root> root(const Rational& value, int64_t degree, Work& work) {
  constexpr int64_t kMaxDegree = 64;
  if (degree < 2 || degree > kMaxDegree) return std::nullopt;
  if (value.sign() == 0) return Root{Rational(), 1};
  const bool negative = value.sign() < 0;
  if (negative && degree % 2 == 0 && degree != 2) return std::nullopt;
  // (a / b)^(1/n) = (a b^(n-1))^(1/n) / b
  const auto scale = power(Rational(value.denominator()), degree - 1, work);
  const auto whole = scale ? multiply(Rational(abs(value.numerator())), *scale, work) : std::nullopt;
  if (!whole) return std::nullopt;
  auto parts = split(whole->numerator(), degree, work);
  if (!parts) return std::nullopt;
  const auto outside = Rational::reduced(std::move(parts->outside), value.denominator(), work);
  if (!outside) return std::nullopt;
  if (!negative) return Root{*outside, std::move(parts->inside)};
  return degree == 2 ? Root{*outside, -parts->inside} : Root{-*outside, std::move(parts->inside)};
}

std::optional<int64_t> exact_logarithm(const Rational& base, const Rational& value, Work& work) {
  const Rational one(1);
  if (base.sign() <= 0 || base == one || value.sign() <= 0) return std::nullopt;
  if (value == one) return 0;
  // Powers of what is above 1 grow, so the search ends.
  const bool inverted = base.numerator() < base.denominator(), below = value.numerator() < value.denominator();
  const auto step = inverted ? invert(base, work) : base, target = below ? invert(value, work) : value;
  if (!step || !target) return std::nullopt;
  std::optional<Rational> reached = one;
  for (int64_t k = 1;; ++k) {
    reached = multiply(*reached, *step, work);
    if (!reached || reached->numerator() > target->numerator()) return std::nullopt;
    if (*reached == *target) return inverted == below ? k : -k;
  }
}

std::optional<Integer> factorial(int64_t n, Work& work) {
  Integer result = 1;
  for (int64_t i = 2; i <= n; ++i) {
    if (!work.spend(kLimbBits + limbs(result)) || !fits(result)) return std::nullopt;
    result *= i;
  }
  return fits(result) ? std::optional(result) : std::nullopt;
}

std::optional<Integer> binomial(int64_t n, int64_t k, Work& work) {
  Integer result = 1;
  k = std::min(k, n - k);
  for (int64_t i = 1; i <= k; ++i) {
    constexpr int64_t kDivision = 16;
    if (!work.spend(kLimbBits + kDivision * limbs(result)) || !fits(result)) return std::nullopt;
    result = result * (n - k + i) / i;
  }
  return fits(result) ? std::optional(result) : std::nullopt;
}

}  // namespace lockstep::rl
