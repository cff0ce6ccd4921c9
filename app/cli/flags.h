// cli: from argv to the options of a recipe. Rows of flags, argparse's rules, four classes of flags (classify.h), one
// catch (main.cpp).
//
//   includes    recipes and all rooms below it
//   memory      options are plain values; a FlagSet refers to the options it fills
//   threads     none
//
// This header: one row per flag a command uses, and how its text becomes an option.
#pragma once

#include <concepts>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cli {

enum class Arity { none, one, many };

using Values = std::vector<std::string>;

// How a flag's values become an option. `set` throws ConfigError naming flag, got and wanted.
struct Binding {
  Arity arity = Arity::one;
  std::string shown = {};  // the default, for help; empty: there is none to show
  std::function<void(const std::string& flag, const Values& values)> set;
  std::string_view later = {};  // values known but not available yet, separated by '|'
};

// Numbers are read whole ('1e-5x', 'nan', 'inf' and an integer written '1e3' are errors) and checked against closed
// bounds; an open bound is the neighbouring value: kAboveZero, kBelowOne.
inline constexpr double kAboveZero = std::numeric_limits<float>::min();
inline constexpr double kBelowOne = 1 - 1e-9;
inline constexpr int64_t kMany = 1'000'000'000;
int64_t parse_integer(const std::string& flag, const std::string& text, int64_t low, int64_t high);
double parse_real(const std::string& flag, const std::string& text, double low, double high);
std::optional<double> read_real(std::string_view text);  // the whole text is a number, or nothing

template <typename T>
concept Number = std::integral<T> || std::floating_point<T>;

// As people write it: 1e-6, 0.2, 2048.
std::string shown_number(double value);
std::string shown_number(float value);
std::string shown_number(std::integral auto value) {
  return std::to_string(value);
}

// A default outside the bounds means "not given" and is not shown.
template <Number T>
Binding number(T& target, double low, double high) {
  const bool legal = static_cast<double>(target) >= low && static_cast<double>(target) <= high;
  return {.shown = legal ? shown_number(target) : "",
          .set = [&target, low, high](const std::string& flag, const Values& values) {
            if constexpr (std::integral<T>)
              target =
                  static_cast<T>(parse_integer(flag, values[0], static_cast<int64_t>(low), static_cast<int64_t>(high)));
            else
              target = static_cast<T>(parse_real(flag, values[0], low, high));
          }};
}

// No default: what it means to leave the flag out is said in its help.
template <Number T>
Binding number(std::optional<T>& target, double low, double high) {
  return {.set = [&target, low, high](const std::string& flag, const Values& values) {
    T value{};
    number(value, low, high).set(flag, values);
    target = value;
  }};
}

template <Number T>
Binding numbers(std::vector<T>& target, double low, double high) {
  Binding binding{.arity = Arity::many, .set = [&target, low, high](const std::string& flag, const Values& values) {
                    target.clear();
                    for (const std::string& value : values) number(target.emplace_back(), low, high).set(flag, {value});
                  }};
  for (const T& value : target) binding.shown += (binding.shown.empty() ? "" : " ") + shown_number(value);
  return binding;
}

Binding toggle(bool& target, bool value = true);  // a switch: giving it stores `value`
Binding text(std::string& target);
Binding text(std::optional<std::string>& target);
Binding texts(std::vector<std::string>& target);
// One of `names`, separated by '|'.
Binding choice(std::string_view names, std::string_view shown, std::function<void(const std::string& name)> set,
               std::string_view later = {});
// --without: which flags of a script a run leaves out; read before all others (classify.h).
inline constexpr std::string_view kWithout = "--without";

// Cut at '|'.
std::vector<std::string_view> split_names(std::string_view names);

struct Flag {
  std::string name;     // "--lr"
  std::string metavar;  // "X"; empty for a switch
  Binding binding;
  std::string help;  // one line
};

// The flags one command uses, in groups, and their help.
class FlagSet {
 public:
  struct Group {
    std::string title;
    std::vector<Flag> flags;
  };

  void add(std::string title, std::vector<Flag> flags) { groups_.push_back({std::move(title), std::move(flags)}); }
  const Flag* find(std::string_view name) const;  // nullptr: not a flag of this command
  const std::vector<Group>& groups() const { return groups_; }
  // `usage` follows the program's name; `closing` stands at the end.
  std::string help(const std::string& usage, const std::string& description, const std::string& closing) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace lockstep::cli
