#include "cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr size_t kHelpColumn = 38;

[[noreturn]] void reject(const std::string& flag, const std::string& got, const std::string& wanted) {
  throw ConfigError(
      {.what = "bad value of " + flag, .where = flag, .got = got.empty() ? "nothing" : got, .wanted = wanted});
}

// Parses the whole text or fails. argparse accepts a leading plus sign, from_chars does not.
template <typename T>
std::optional<T> read_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// 1e-06 is 1e-6.
std::string without_padding(std::string text) {
  if (const size_t zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);
  return text;
}

std::string range_text(double low, double high) {
  const std::string from = low == kAboveZero ? "above 0" : fmt::format("from {}", shown_number(low));
  return fmt::format("{} {}", from, high == kBelowOne ? "to below 1" : "to " + shown_number(high));
}

}  // namespace

std::string shown_number(double value) {
  return without_padding(fmt::format("{}", value));
}
std::string shown_number(float value) {
  return without_padding(fmt::format("{}", value));
}

std::optional<double> read_real(std::string_view text) {
  return read_number<double>(text);
}

int64_t parse_integer(const std::string& flag, const std::string& text, int64_t low, int64_t high) {
  const auto value = read_number<int64_t>(text);
  if (!value || *value < low || *value > high)
    reject(flag, text, fmt::format("a whole number from {} to {}", low, high));
  return *value;
}

double parse_real(const std::string& flag, const std::string& text, double low, double high) {
  const auto value = read_real(text);
  if (!value || !std::isfinite(*value) || *value < low || *value > high)
    reject(flag, text, "a number " + range_text(low, high));
  return *value;
}

Binding toggle(bool& target, bool value) {
  return {.arity = Arity::none, .set = [&target, value](const std::string&, const Values&) { target = value; }};
}

Binding text(std::string& target) {
  return {.shown = target, .set = [&target](const std::string& flag, const Values& values) {
            if (values[0].empty()) reject(flag, "", "text");
            target = values[0];
          }};
}

Binding text(std::optional<std::string>& target) {
  return {.set = [&target](const std::string&, const Values& values) { target = values[0]; }};
}

Binding texts(std::vector<std::string>& target) {
  return {.arity = Arity::many, .set = [&target](const std::string& flag, const Values& values) {
            for (const std::string& value : values)
              if (value.empty()) reject(flag, "", "text");
            target = values;
          }};
}

std::vector<std::string_view> split_names(std::string_view names) {
  std::vector<std::string_view> list;
  while (!names.empty()) {
    const size_t end = std::min(names.find('|'), names.size());
    list.push_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return list;
}

Binding choice(std::string_view names, std::string_view shown, std::function<void(const std::string&)> set,
               std::string_view later) {
  return {.shown = std::string(shown),
          .set =
              [names, set = std::move(set)](const std::string& flag, const Values& values) {
                for (const std::string_view name : split_names(names))
                  if (values[0] == name) return set(values[0]);
                reject(flag, values[0], fmt::format("{}", fmt::join(split_names(names), ", ")));
              },
          .later = later};
}

const Flag* FlagSet::find(std::string_view name) const {
  for (const Group& group : groups_)
    for (const Flag& flag : group.flags)
      if (flag.name == name) return &flag;
  return nullptr;
}

std::string FlagSet::help(const std::string& usage, const std::string& description, const std::string& closing) const {
  CLI::App app(description, "lockstep " + usage);
  app.get_formatter()->column_width(kHelpColumn);
  app.set_help_flag();
  app.footer(closing);
  for (const Group& group : groups_)
    for (const Flag& flag : group.flags) {
      CLI::Option* option = app.add_option(flag.name, CLI::callback_t(), flag.help);
      // Value and default are spelled here, because CLI11's own spelling differs between its versions.
      std::string value = flag.metavar;
      if (!flag.binding.shown.empty()) value += "=" + flag.binding.shown;
      option->group(group.title)->option_text(value.empty() ? " " : value);
    }
  return CLI::detail::find_and_replace(app.help(), "\n\n\n", "\n\n");
}

}  // namespace lockstep::cli
