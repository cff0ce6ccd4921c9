// + - * / // % ** of numbers, strings and lists.
#include <algorithm>
#include <cmath>

#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

[[noreturn]] void unsupported_operands(Runtime& runtime, BinaryOperator op, const Value& a, const Value& b) {
  runtime.need_defined(a);
  runtime.need_defined(b);
  if (op == BinaryOperator::add && (a.is_string() || a.is_sequence(Flavour::list) || a.is_sequence(Flavour::tuple)))
    runtime.fail("can only concatenate " + std::string(type_name(a)) + " (not \"" + std::string(type_name(b)) +
                 "\") to " + std::string(type_name(a)));
  runtime.fail("unsupported operand type(s) for " + std::string(kSymbols[static_cast<size_t>(op)]) + ": '" +
               std::string(type_name(a)) + "' and '" + std::string(type_name(b)) + "'");
}

Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int multiply(Runtime& runtime, Int a, Int b) {
  const Int magnitude = a < 0 ? -a : a, other = b < 0 ? -b : b;
  if (magnitude != 0 && other > kLargestInt / magnitude) runtime.fail("an integer is too large");
  return a * b;
}

Value integer_power(Runtime& runtime, Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) runtime.fail("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  runtime.step(static_cast<int64_t>(std::min<Int>(exponent, 128)));
  Int result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? Int{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? Int{1} : Int{-1});
  for (; exponent > 0; --exponent) result = multiply(runtime, result, base);  // ends soon: the result grows too large
  return Value(result);
}

Value integer_arithmetic(Runtime& runtime, BinaryOperator op, Int a, Int b) {
  switch (op) {
    case BinaryOperator::add: return runtime.integer(a + b);
    case BinaryOperator::subtract: return runtime.integer(a - b);
    case BinaryOperator::multiply: return runtime.integer(multiply(runtime, a, b));
    case BinaryOperator::power: return integer_power(runtime, a, b);
    default: break;
  }
  if (b == 0) runtime.fail(op == BinaryOperator::divide ? "division by zero" : "integer division or modulo by zero");
  if (op == BinaryOperator::divide)
    return Value(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  const Int quotient = floor_divide(a, b);
  return runtime.integer(op == BinaryOperator::floor_divide ? quotient : a - quotient * b);
}

// Quotient and remainder as Python's float_divmod: the remainder has the sign of the divisor.
std::pair<double, double> divide_with_remainder(double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), rest};
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return {whole, rest};
}

Value real_power(Runtime& runtime, double a, double b) {
  if (a == 0 && b < 0) runtime.fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) runtime.unsupported("complex numbers");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) runtime.fail("Numerical result out of range");
  return Value(result);
}

Value real_arithmetic(Runtime& runtime, BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::add: return Value(a + b);
    case BinaryOperator::subtract: return Value(a - b);
    case BinaryOperator::multiply: return Value(a * b);
    case BinaryOperator::power: return real_power(runtime, a, b);
    default: break;
  }
  if (b == 0)
    runtime.fail(op == BinaryOperator::divide         ? "float division by zero"
                 : op == BinaryOperator::floor_divide ? "float floor division by zero"
                                                      : "float modulo");
  if (op == BinaryOperator::divide) return Value(a / b);
  const auto [quotient, rest] = divide_with_remainder(a, b);
  return Value(op == BinaryOperator::floor_divide ? quotient : rest);
}

Value joined(Runtime& runtime, const Value& a, const Value& b) {
  if (a.string().markup || b.string().markup) return runtime.text(escaped(runtime, a) + escaped(runtime, b), true);
  runtime.charge(a.text().size() + b.text().size());
  return runtime.text(a.text() + b.text());
}

Value repeated(Runtime& runtime, const Value& value, Int count) {
  const Int times = std::max<Int>(count, 0);
  const auto total = [&](size_t size) {
    if (size != 0 && times > Int{1} << 40) runtime.exhausted("many bytes");
    const size_t bytes = size * static_cast<size_t>(size == 0 ? 0 : times);
    runtime.charge(bytes);
    return bytes;
  };
  if (value.is_string()) {
    std::string out;
    const size_t size = total(value.text().size());
    out.reserve(size);
    if (size > 0) out = value.text();
    while (out.size() < size) out.append(out, 0, std::min(out.size(), size - out.size()));
    return runtime.text(std::move(out), value.string().markup);
  }
  const Sequence& row = value.sequence();
  const size_t size = total(row.items.size() * sizeof(Value)) / sizeof(Value);
  Values items;
  items.reserve(size);
  while (items.size() < size) items.insert(items.end(), row.items.begin(), row.items.end());
  return runtime.row(std::move(items), row.flavour);
}

bool is_repeatable(const Value& value) {
  return value.is_string() || value.is_sequence(Flavour::list) || value.is_sequence(Flavour::tuple);
}

}  // namespace

Value arithmetic(Runtime& runtime, BinaryOperator op, const Value& a, const Value& b) {
  runtime.step();
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(runtime, op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return real_arithmetic(runtime, op, a.real(), b.real());
  if (op == BinaryOperator::add) {
    if (a.is_string() && b.is_string()) return joined(runtime, a, b);
    for (const Flavour flavour : {Flavour::list, Flavour::tuple})
      if (a.is_sequence(flavour) && b.is_sequence(flavour)) {
        runtime.charge((a.sequence().items.size() + b.sequence().items.size()) * sizeof(Value));
        Values items = a.sequence().items;
        items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
        return runtime.row(std::move(items), flavour);
      }
  }
  if (op == BinaryOperator::multiply) {
    if (is_repeatable(a) && b.is_integer()) return repeated(runtime, a, b.integer());
    if (is_repeatable(b) && a.is_integer()) return repeated(runtime, b, a.integer());
  }
  if (op == BinaryOperator::modulo && a.is_string()) {
    if (a.string().markup) runtime.unsupported("% of a text that is marked safe");
    return runtime.text(percent_format(runtime, a.text(), b));
  }
  unsupported_operands(runtime, op, a, b);
}

Value negative(Runtime& runtime, const Value& value, bool minus) {
  if (value.is_integer()) return Value(minus ? -value.integer() : value.integer());
  if (value.is(Kind::real)) return Value(minus ? -value.real() : value.real());
  runtime.need_defined(value);
  runtime.fail(std::string("bad operand type for unary ") + (minus ? "-" : "+") + ": '" +
               std::string(type_name(value)) + "'");
}

}  // namespace lockstep::text::jinja
