// Methods of Python's types, and what filters share with them. Internal to functions, filters and methods.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/functions.h"

namespace lockstep::text::jinja {

// A method of str by its name, which must be known.
Value call_string_method(Runtime& runtime, std::string_view name, const Value& self, Arguments& arguments);

// str.splitlines.
std::vector<std::string> split_lines(Runtime& runtime, std::string_view text, bool keep_ends = false);

// str.split and rsplit: at runs of spaces, at a separator (not empty); at most `most` cuts, negative: all.
std::vector<std::string_view> split_spaces(Runtime& runtime, std::string_view text, Int most, bool from_right);
std::vector<std::string_view> split_at(Runtime& runtime, std::string_view text, std::string_view separator, Int most,
                                       bool from_right);

// int(text, base), float(text); nothing where Python raises ValueError.
std::optional<Int> parse_integer(std::string_view text, int base);
std::optional<double> parse_real(std::string_view text);

// str.format's description of a field applied to a value: "{:>8.2f}".
std::string with_spec(Runtime& runtime, const Value& value, const std::string& spec);
// `text` filled up to `width` characters.
std::string padded(Runtime& runtime, const std::string& text, Int width, char align, const std::string& fill);

// Filters of numbers.
Value absolute(Runtime& runtime, const Value& value, Arguments& arguments);
Value to_integer(Runtime& runtime, const Value& value, Arguments& arguments);
Value to_real(Runtime& runtime, const Value& value, Arguments& arguments);
Value rounded(Runtime& runtime, const Value& value, Arguments& arguments);

struct MethodRow {
  std::string_view name;
  Filter call;  // null: Python has it and templates cannot use it
};
std::span<const MethodRow> string_methods();

}  // namespace lockstep::text::jinja
