#include "rl/reward/math_equality.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace lockstep::rl {

namespace {

using Kind = MathAnswer::Kind;
using Parts = std::span<const MathAnswer>;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

class Comparison {
 public:
  Comparison(double tolerance, Work& work) : tolerance_(tolerance), work_(work) {}

  bool same(const MathAnswer& wanted, const MathAnswer& given) {
    if (!wanted.text.empty() && wanted.text == given.text) return true;
    constexpr int64_t kCost = 64;
    if (!work_.spend(kCost)) return false;
    const bool equation = wanted.kind == Kind::equation, other = given.kind == Kind::equation;
    if (equation && other)
      return in_order(wanted.parts, given.parts) ||
             (same(wanted.parts[0], given.parts[1]) && same(wanted.parts[1], given.parts[0]));
    if (equation && wanted.named) return same(wanted.parts[1], given);
    if (other && given.named) return same(wanted, given.parts[1]);
    if (is_collection(wanted) || is_collection(given)) return same_collections(wanted, given);
    if (wanted.kind == Kind::chain && given.kind == Kind::tuple) return same_interval(wanted, given);
    if (wanted.kind != given.kind) return false;
    switch (wanted.kind) {
      case Kind::scalar: return same_scalars(wanted, given);
      case Kind::tuple:
      case Kind::chain: return wanted.marks == given.marks && in_order(wanted.parts, given.parts);
      case Kind::matrix: return in_order(wanted.parts, given.parts);
      case Kind::join: return in_any_order(wanted.parts, given.parts);
      default: return false;
    }
  }

 private:
  static bool is_collection(const MathAnswer& answer) { return answer.kind == Kind::list || answer.kind == Kind::set; }
  static Parts parts_of(const MathAnswer& answer) {
    return is_collection(answer) ? Parts(answer.parts) : Parts(&answer, 1);
  }

  bool same_collections(const MathAnswer& wanted, const MathAnswer& given) {
    const auto point = [](const MathAnswer& answer) { return answer.kind == Kind::tuple && answer.marks == "()"; };
    if ((wanted.kind == Kind::list && point(given)) || (given.kind == Kind::list && point(wanted)))
      return in_order(wanted.parts, given.parts);
    return in_any_order(parts_of(wanted), parts_of(given));
  }

  bool in_order(Parts wanted, Parts given) {
    if (wanted.size() != given.size()) return false;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!same(wanted[i], given[i])) return false;
    return true;
  }

  bool in_any_order(Parts wanted, Parts given) {
    if (wanted.size() != given.size()) return false;
    std::vector<bool> taken(given.size());
    for (const MathAnswer& part : wanted) {
      size_t i = 0;
      while (i < given.size() && (taken[i] || !same(part, given[i]))) ++i;
      if (i == given.size()) return false;
      taken[i] = true;
    }
    return true;
  }

  // a < x < b, x < b, a < x as the interval from a to b.
  bool same_interval(const MathAnswer& chain, const MathAnswer& interval) {
    const auto name = std::ranges::find_if(chain.parts, [](const MathAnswer& part) {
      return part.kind == Kind::scalar && part.named && part.value.has_variables();
    });
    const auto at = static_cast<size_t>(name - chain.parts.begin());
    const bool ends = at == 1 || (at == 0 && chain.parts.size() == 2);
    if (!ends || chain.parts.size() > 3 || interval.parts.size() != 2) return false;
    const MathValue infinity = MathValue::variable("\\infty");
    const bool from = at == 1, to = at + 1 < chain.parts.size();
    const auto bound = [&](bool given, size_t part, const MathValue& otherwise) {
      return given ? chain.parts[part] : MathAnswer{.value = otherwise};
    };
    const char open = from && chain.marks[0] == '=' ? '[' : '(', close = to && chain.marks.back() == '=' ? ']' : ')';
    return interval.marks == std::string{open, close} &&
           same(bound(from, 0, negate(infinity, work_)), interval.parts[0]) &&
           same(bound(to, at + 1, infinity), interval.parts[1]);
  }

  bool same_scalars(const MathAnswer& wanted, const MathAnswer& given) {
    if (!wanted.word.empty() && !given.word.empty() && wanted.word == given.word) return true;
    // East is not a product of letters that may change places; ab is.
    constexpr size_t kProduct = 2;
    if (wanted.word.size() > kProduct && given.word.size() > kProduct) return false;
    if (!wanted.value.known() && !given.value.known())
      return !wanted.text.empty() && lower(wanted.text) == lower(given.text);
    if (wanted.percent == given.percent) return same_values(wanted.value, given.value);
    const MathValue hundred = MathValue::integer(100);
    return same_values(wanted.value, given.value) ||
           same_values(wanted.percent ? divide(wanted.value, hundred, work_) : wanted.value,
                       given.percent ? divide(given.value, hundred, work_) : given.value);
  }

  bool same_values(const MathValue& wanted, const MathValue& given) const {
    if (wanted == given) return true;
    if (tolerance_ == 0 || !wanted.known() || !given.known() || wanted.has_variables() || given.has_variables())
      return false;
    return std::abs(wanted.approximate() - given.approximate()) <= tolerance_ * std::abs(wanted.approximate());
  }

  const double tolerance_;
  Work& work_;
};

}  // namespace

bool same_math(const MathAnswer& wanted, const MathAnswer& given, double tolerance, Work& work) {
  return Comparison(tolerance, work).same(wanted, given);
}

}  // namespace lockstep::rl
