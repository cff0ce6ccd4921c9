// Exact numbers q1 sqrt(n1) + q2 sqrt(n2) + ...: each q rational, the n distinct and free of small square factors.
// sqrt(1) = 1 carries the rational part; the root of a negative n is sqrt(-1) sqrt(|n|).
//
//   normal form   equal forms are equal numbers. The reverse holds but for radicands with a square factor all of whose
//                 primes exceed 2,000: two forms of one number may then differ, so a comparison errs towards "unequal".
//   bounds        as rational.h, and at most kMaxTerms terms
#pragma once

#include <vector>

#include "rl/reward/rational.h"

namespace lockstep::rl {

class Surd {
 public:
  struct Term {
    Integer radicand;
    Rational factor;
    bool operator==(const Term&) const = default;
  };
  static constexpr size_t kMaxTerms = 32;

  Surd() = default;  // 0
  explicit Surd(Rational value) : Surd(1, std::move(value)) {}
  Surd(Integer radicand, Rational factor);  // factor sqrt(radicand); the radicand is in normal form

  std::optional<Rational> rational() const;                  // nullopt: it has a root in it
  const std::vector<Term>& terms() const { return terms_; }  // by radicand; no factor is 0
  std::string key() const;                                   // equal for equal forms only
  Surd operator-() const;
  bool operator==(const Surd&) const = default;

 private:
  friend std::optional<Surd> add(const Surd& a, const Surd& b, Work& work);

  std::vector<Term> terms_;
};

std::optional<Surd> add(const Surd& a, const Surd& b, Work& work);
std::optional<Surd> multiply(const Surd& a, const Surd& b, Work& work);
std::optional<Surd> invert(const Surd& a, Work& work);
std::optional<Surd> power(const Surd& a, int64_t exponent, Work& work);  // nullopt also for 0^0

// value^(1/degree) = outside * inside^(1/degree), where `inside` has no degree-th power of a small prime in it and is
// negative only for degree 2; an odd root of a negative number is the real one. nullopt also for other even roots of
// negative numbers, and degrees outside [2, 64].
struct Root {
  Rational outside;
  Integer inside;
};
std::optional<Root> root(const Rational& value, int64_t degree, Work& work);

// The integer k with base^k = value; nullopt: there is none.
std::optional<int64_t> exact_logarithm(const Rational& base, const Rational& value, Work& work);

// n! and n! / (k! (n - k)!), of 0 <= k <= n.
std::optional<Integer> factorial(int64_t n, Work& work);
std::optional<Integer> binomial(int64_t n, int64_t k, Work& work);

}  // namespace lockstep::rl
