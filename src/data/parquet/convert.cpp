#include "data/parquet/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base64.h"
#include "core/tensor.h"
#include "core/utf8.h"

namespace lockstep::data::parquet {

namespace {

using Kind = Logical::Kind;

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kSecondsPerDay = 86'400;

template <class Number>
Number number_of(std::string_view bytes) {
  Number value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

bool is_ascii(std::string_view bytes) {
  uint64_t high = 0;
  size_t place = 0;
  for (; place + 8 <= bytes.size(); place += 8) high |= number_of<uint64_t>(bytes.substr(place));
  for (; place < bytes.size(); ++place) high |= static_cast<uint8_t>(bytes[place]);
  return (high & 0x8080808080808080u) == 0;
}

std::optional<std::string> date_text(int64_t days) {
  constexpr int64_t kYear1 = -719'162, kYear9999End = 2'932'896;
  if (days < kYear1 || days > kYear9999End) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days{days}}};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

std::string time_text(int64_t seconds, int64_t nanos) {
  std::string text = fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  if (nanos % 1000 != 0)
    text += fmt::format(".{:09}", nanos);
  else if (nanos != 0)
    text += fmt::format(".{:06}", nanos / 1000);
  return text;
}

int64_t units_per_second(Logical::Unit unit) {
  constexpr int64_t kUnits[] = {1'000, 1'000'000, kNanosPerSecond};
  return kUnits[static_cast<int>(unit)];
}

std::optional<std::string> timestamp_text(int64_t value, const Logical& logical) {
  const int64_t units = units_per_second(logical.unit);
  int64_t seconds = value / units, fraction = value % units;
  if (fraction < 0) fraction += units, --seconds;
  int64_t days = seconds / kSecondsPerDay, second = seconds % kSecondsPerDay;
  if (second < 0) second += kSecondsPerDay, --days;
  const auto date = date_text(days);
  if (!date) return std::nullopt;
  return *date + "T" + time_text(second, fraction * (kNanosPerSecond / units)) + (logical.utc ? "+00:00" : "");
}

std::optional<std::string> clock_text(int64_t value, Logical::Unit unit) {
  const int64_t units = units_per_second(unit);
  if (value < 0 || value / units >= kSecondsPerDay) return std::nullopt;
  return time_text(value / units, value % units * (kNanosPerSecond / units));
}

// Nanoseconds of the day and the day counted from 4713 BC: what timestamps were before INT64 had any.
std::optional<std::string> julian_text(std::string_view bytes) {
  constexpr int64_t kEpoch = 2'440'588;
  const auto nanos = number_of<int64_t>(bytes);
  const int64_t days = static_cast<int64_t>(number_of<uint32_t>(bytes.substr(8))) - kEpoch;
  if (nanos < 0 || nanos / kNanosPerSecond >= kSecondsPerDay) return std::nullopt;
  const auto date = date_text(days);
  if (!date) return std::nullopt;
  return *date + "T" + time_text(nanos / kNanosPerSecond, nanos % kNanosPerSecond);
}

// A two's complement integer, most significant byte first, with a point before its last `scale` digits.
std::string decimal_text(std::string_view bytes, int32_t scale) {
  std::vector<uint8_t> value(bytes.begin(), bytes.end());
  const bool negative = !value.empty() && value[0] >= 0x80;
  if (negative) {
    for (uint8_t& byte : value) byte = static_cast<uint8_t>(~byte);
    for (size_t i = value.size(); i-- > 0;)
      if (++value[i] != 0) break;
  }
  std::string digits;  // from the last
  for (size_t first = 0; first < value.size();) {
    unsigned rest = 0;
    for (size_t i = first; i < value.size(); ++i) {
      rest = rest << 8 | value[i];
      value[i] = static_cast<uint8_t>(rest / 10);
      rest %= 10;
    }
    digits += static_cast<char>('0' + rest);
    while (first < value.size() && value[first] == 0) ++first;
  }
  const auto places = static_cast<size_t>(std::max(scale, 0));
  if (digits.size() <= places) digits.append(places + 1 - digits.size(), '0');
  std::reverse(digits.begin(), digits.end());
  if (places > 0) digits.insert(digits.size() - places, 1, '.');
  return negative ? "-" + digits : digits;
}

std::string big_endian(std::string_view bytes) {
  return {bytes.rbegin(), bytes.rend()};
}

std::string uuid_text(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<uint8_t>(bytes[i]));
  }
  return text;
}

OrderedJson float_json(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson integer_json(const Column& column, std::string_view bytes) {
  const bool is_signed = column.logical.kind != Kind::integer || column.logical.is_signed;
  if (column.physical == Physical::int32) {
    if (is_signed) return number_of<int32_t>(bytes);
    return number_of<uint32_t>(bytes);
  }
  if (is_signed) return number_of<int64_t>(bytes);
  return number_of<uint64_t>(bytes);
}

int64_t signed_value(const Column& column, std::string_view bytes) {
  return column.physical == Physical::int32 ? number_of<int32_t>(bytes) : number_of<int64_t>(bytes);
}

// Types that are an annotation's; nullopt with the reason, or with none where the bare type decides.
std::optional<OrderedJson> annotated(const Column& column, std::string_view bytes, std::string& problem) {
  const Logical& logical = column.logical;
  const auto or_problem = [&](const std::optional<std::string>& text, const char* what) -> std::optional<OrderedJson> {
    if (text) return *text;
    problem = what;
    return std::nullopt;
  };
  switch (logical.kind) {
    case Kind::string:
    case Kind::enumeration:
    case Kind::json:
      if (is_ascii(bytes) || valid_utf8_prefix(bytes) == bytes.size()) return OrderedJson(bytes);
      problem = "a string that is not UTF-8";
      return std::nullopt;
    case Kind::decimal: {
      const bool number = column.physical == Physical::int32 || column.physical == Physical::int64;
      return decimal_text(number ? big_endian(bytes) : std::string(bytes), logical.scale);
    }
    case Kind::date: return or_problem(date_text(number_of<int32_t>(bytes)), "a date outside the years 1 to 9999");
    case Kind::time: return or_problem(clock_text(signed_value(column, bytes), logical.unit), "a time outside the day");
    case Kind::timestamp:
      return or_problem(timestamp_text(number_of<int64_t>(bytes), logical), "a date outside the years 1 to 9999");
    case Kind::uuid: return uuid_text(bytes);
    case Kind::float16: return float_json(static_cast<double>(to_f32(number_of<Float16>(bytes))));
    case Kind::null: return nullptr;
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<OrderedJson> to_json(const Column& column, std::string_view bytes, std::string& problem) {
  problem.clear();
  if (auto value = annotated(column, bytes, problem); value || !problem.empty()) return value;
  switch (column.physical) {
    case Physical::boolean: return bytes[0] != 0;
    case Physical::int32:
    case Physical::int64: return integer_json(column, bytes);
    case Physical::float32: return float_json(static_cast<double>(number_of<float>(bytes)));
    case Physical::float64: return float_json(number_of<double>(bytes));
    case Physical::int96: {
      auto text = julian_text(bytes);
      if (text) return *text;
      problem = "a date outside the years 1 to 9999";
      return std::nullopt;
    }
    default: return base64(bytes);
  }
}

}  // namespace lockstep::data::parquet
