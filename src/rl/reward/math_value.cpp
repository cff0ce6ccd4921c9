#include "rl/reward/math_value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "rl/reward/surd.h"

namespace lockstep::rl {

namespace {

constexpr size_t kPoints = 3;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// FNV-1a, then the finalizer of MurmurHash3, so that neighbouring names and points are far apart.
uint64_t hashed(std::string_view text, uint64_t point) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash += point * 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
  return hash ^ (hash >> 33);
}

// A fraction of about 10^5 that is no integer: positive at the first point, negative at the second.
Rational coordinate(std::string_view name, uint64_t point) {
  constexpr std::array<uint64_t, 8> kDenominators = {7, 11, 13, 17, 19, 23, 29, 31};
  const uint64_t hash = hashed(name, point), below = kDenominators[hash % kDenominators.size()];
  const uint64_t whole = 1'000'003 + (hash >> 3) % 1'999'993;
  const uint64_t above = whole - whole % below + 1 + (hash >> 32) % (below - 1);
  const bool negative = point == 1 || (point == 2 && (hash >> 60) % 2 == 1);
  Work work;
  return *Rational::reduced(negative ? -Integer(above) : Integer(above), Integer(below), work);
}

Surd whole(Integer value) {
  return Surd(Rational(std::move(value)));
}

std::optional<int64_t> small_integer(const Surd& a) {
  const auto value = a.rational();
  constexpr int64_t kMax = int64_t{1} << 40;
  if (!value || !value->is_integer() || abs(value->numerator()) > kMax) return std::nullopt;
  return value->numerator().convert_to<int64_t>();
}

// One of the points, for which a function is evaluated.
struct Place {
  uint64_t point;
  Work& work;
  bool opaque = false;  // nothing was known about the function: its value is another at each point
};

// The value of an unknown function for these arguments.
std::optional<Surd> opaque(std::string_view name, const Surd& a, const Surd& b, Place& place) {
  place.opaque = true;
  int64_t size = 1;
  for (const Surd* argument : {&a, &b})
    for (const Surd::Term& term : argument->terms())
      size += limbs(term.radicand) + limbs(term.factor.numerator()) + limbs(term.factor.denominator());
  if (!place.work.spend(4 * kLimbBits * size)) return std::nullopt;
  return Surd(coordinate(std::string(name) + "(" + a.key() + "," + b.key() + ")", place.point));
}

std::optional<Surd> root_at(const Surd& a, int64_t degree, Place& place) {
  const auto value = a.rational();
  const auto found = value ? root(*value, degree, place.work) : std::nullopt;
  if (!found) return opaque("root", a, whole(degree), place);
  if (degree == 2) return Surd(found->inside, found->outside);
  if (found->inside == 1) return Surd(found->outside);
  const auto rest = opaque("root", whole(found->inside), whole(degree), place);
  return rest ? multiply(Surd(found->outside), *rest, place.work) : std::nullopt;
}

// Integer powers, and roots of them: 8^(2/3) = 4. A point of a variable is no such exponent.
std::optional<Surd> power_at(const Surd& base, const Surd& exponent, Place& place) {
  const auto value = exponent.rational();
  constexpr int64_t kMaxDegree = 12, kMaxPower = 1000;
  if (value && value->is_integer()) {
    const auto whole_power = small_integer(exponent);
    return whole_power ? power(base, *whole_power, place.work) : std::nullopt;
  }
  if (!value || value->denominator() > kMaxDegree || abs(value->numerator()) > kMaxPower)
    return opaque("power", base, exponent, place);
  const auto found = root_at(base, value->denominator().convert_to<int64_t>(), place);
  return found ? power(*found, value->numerator().convert_to<int64_t>(), place.work) : std::nullopt;
}

std::optional<Surd> absolute_at(const Surd& a, Place& place) {
  // A single real root has the sign of its factor.
  if (a.terms().empty()) return a;
  if (a.terms().size() > 1 || a.terms()[0].radicand < 0) return opaque("abs", a, Surd(), place);
  return a.terms()[0].factor.sign() < 0 ? -a : a;
}

std::optional<Surd> factorial_at(const Surd& a, Place& place) {
  const auto n = small_integer(a);
  if (!n || *n < 0) return opaque("factorial", a, Surd(), place);
  const auto value = factorial(*n, place.work);
  return value ? std::optional(whole(*value)) : std::nullopt;
}

std::optional<Surd> binomial_at(const Surd& a, const Surd& b, Place& place) {
  const auto n = small_integer(a), k = small_integer(b);
  if (!n || !k || *n < 0 || *k < 0) return opaque("binomial", a, b, place);
  if (*k > *n) return Surd();
  const auto value = binomial(*n, *k, place.work);
  return value ? std::optional(whole(*value)) : std::nullopt;
}

std::optional<Surd> logarithm_at(const Surd& base, const Surd& a, Place& place) {
  const auto b = base.rational(), value = a.rational();
  const auto exponent = b && value ? exact_logarithm(*b, *value, place.work) : std::nullopt;
  return exponent ? std::optional(whole(*exponent)) : opaque("log", base, a, place);
}

double gamma_of_next(double n) {
  return n < 0 ? kNone : std::tgamma(n + 1);
}

struct Function {
  std::string_view name;
  double (*approximate)(double);
};
constexpr Function kFunctions[] = {
    {"sin", std::sin},   {"cos", std::cos},     {"tan", std::tan},     {"cot", nullptr},      {"sec", nullptr},
    {"csc", nullptr},    {"arcsin", std::asin}, {"arccos", std::acos}, {"arctan", std::atan}, {"sinh", std::sinh},
    {"cosh", std::cosh}, {"tanh", std::tanh},   {"ln", std::log},      {"log", nullptr},
};

}  // namespace

struct MathValue::Points {
  std::vector<Surd> at;  // one, if it is the same at all
  const Surd& operator[](size_t point) const { return at[at.size() == 1 ? 0 : point]; }
};

struct MathOps {
  // op(a, b, place) -> optional<Surd>, at every place where it may differ.
  template <class Op>
  static MathValue apply(const MathValue& a, const MathValue& b, double approximate, Work& work, const Op& op) {
    if (!a.known() || !b.known()) return {};
    bool constant = a.points_->at.size() == 1 && b.points_->at.size() == 1;
    auto points = std::make_shared<MathValue::Points>();
    for (size_t point = 0; point < (constant ? 1 : kPoints); ++point) {
      Place place{.point = point, .work = work};
      std::optional<Surd> value = op((*a.points_)[point], (*b.points_)[point], place);
      if (!value) return {};
      points->at.push_back(*std::move(value));
      constant = constant && !place.opaque;
    }
    return make(std::move(points), approximate, a.variables_ || b.variables_);
  }

  static MathValue make(std::shared_ptr<const MathValue::Points> points, double approximate, bool variables) {
    MathValue value;
    value.points_ = std::move(points);
    value.approximate_ = approximate;
    value.variables_ = variables;
    return value;
  }

  static MathValue constant(Rational value) {
    const double approximate = value.approximate();
    auto points = std::make_shared<MathValue::Points>();
    points->at.emplace_back(std::move(value));
    return make(std::move(points), approximate, false);
  }
};

MathValue MathValue::integer(int64_t value) {
  return MathOps::constant(Rational(value));
}

MathValue MathValue::number(const std::string& text, Work& work) {
  const auto value = parse_number(text, work);
  return value ? MathOps::constant(*value) : MathValue();
}

MathValue MathValue::variable(std::string_view name) {
  auto points = std::make_shared<Points>();
  for (uint64_t point = 0; point < kPoints; ++point) points->at.emplace_back(coordinate(name, point));
  const double value = name == "\\pi" ? std::numbers::pi : name == "e" ? std::numbers::e : kNone;
  return MathOps::make(std::move(points), value, std::isnan(value) && name != "\\infty");
}

bool MathValue::operator==(const MathValue& other) const {
  if (!known() || !other.known()) return false;
  for (size_t point = 0; point < kPoints; ++point)
    if ((*points_)[point] != (*other.points_)[point]) return false;
  return true;
}

MathValue add(const MathValue& a, const MathValue& b, Work& work) {
  return MathOps::apply(a, b, a.approximate() + b.approximate(), work,
                        [](const Surd& x, const Surd& y, Place& at) { return add(x, y, at.work); });
}

MathValue negate(const MathValue& a, Work& work) {
  return MathOps::apply(a, a, -a.approximate(), work,
                        [](const Surd& x, const Surd&, Place&) { return std::optional(-x); });
}

MathValue multiply(const MathValue& a, const MathValue& b, Work& work) {
  return MathOps::apply(a, b, a.approximate() * b.approximate(), work,
                        [](const Surd& x, const Surd& y, Place& at) { return multiply(x, y, at.work); });
}

MathValue divide(const MathValue& a, const MathValue& b, Work& work) {
  return MathOps::apply(a, b, a.approximate() / b.approximate(), work, [](const Surd& x, const Surd& y, Place& at) {
    const auto inverse = invert(y, at.work);
    return inverse ? multiply(x, *inverse, at.work) : std::nullopt;
  });
}

MathValue power(const MathValue& base, const MathValue& exponent, Work& work) {
  return MathOps::apply(base, exponent, std::pow(base.approximate(), exponent.approximate()), work, power_at);
}

MathValue root(const MathValue& a, const MathValue& degree, Work& work) {
  return power(a, divide(MathValue::integer(1), degree, work), work);
}

MathValue absolute(const MathValue& a, Work& work) {
  return MathOps::apply(a, a, std::abs(a.approximate()), work,
                        [](const Surd& x, const Surd&, Place& at) { return absolute_at(x, at); });
}

MathValue factorial(const MathValue& a, Work& work) {
  return MathOps::apply(a, a, gamma_of_next(a.approximate()), work,
                        [](const Surd& x, const Surd&, Place& at) { return factorial_at(x, at); });
}

MathValue binomial(const MathValue& n, const MathValue& k, Work& work) {
  const double x = n.approximate(), y = k.approximate();
  return MathOps::apply(n, k, gamma_of_next(x) / gamma_of_next(y) / gamma_of_next(x - y), work, binomial_at);
}

MathValue logarithm(const MathValue& base, const MathValue& a, Work& work) {
  return MathOps::apply(base, a, std::log(a.approximate()) / std::log(base.approximate()), work, logarithm_at);
}

bool is_elementary(std::string_view name) {
  return std::ranges::find(kFunctions, name, &Function::name) != std::end(kFunctions);
}

MathValue elementary(std::string_view name, const MathValue& a, Work& work) {
  const auto known = std::ranges::find(kFunctions, name, &Function::name);
  if (known == std::end(kFunctions)) return {};
  const double approximate = known->approximate == nullptr ? kNone : known->approximate(a.approximate());
  return MathOps::apply(a, a, approximate, work,
                        [name](const Surd& x, const Surd&, Place& at) { return opaque(name, x, Surd(), at); });
}

}  // namespace lockstep::rl
