// Filters, tests and global functions by name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace lockstep::text::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
// FormatError: the template uses an unknown name; the message has the nearest known one.
[[noreturn]] void fail_unknown(const std::string& where, int line, const std::string& name, bool filter);

// `name` may be unknown: FormatError.
Value call_filter(Runtime& runtime, const std::string& name, const Value& value, Arguments arguments);
bool call_test(Runtime& runtime, const std::string& name, const Value& value, Arguments arguments);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; missing for other names.
Value global_function(std::string_view name);

// Positional and named arguments in the order of `names`, missing where not given. DataError in Python's words: unknown
// name, given twice, too many, fewer than `required`.
Values bound(Runtime& runtime, std::string_view function, Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required = 0);

// Internal to functions, filters and methods: typed views of a bound argument; DataError unless it has the type.
const std::string& need_text(Runtime& runtime, const Value& value);
Int need_integer(Runtime& runtime, const Value& value);
int64_t need_count(Runtime& runtime, const Value& value, int64_t largest);  // clamped to [-largest, largest]

using Filter = Value (*)(Runtime&, const Value&, Arguments&);
struct FilterRow {
  std::string_view name;
  Filter call;
};
std::span<const FilterRow> text_filters();   // of strings and numbers
std::span<const FilterRow> list_filters();   // of lists
std::span<const FilterRow> order_filters();  // sort, unique, groupby, min, max, sum, dictsort

}  // namespace lockstep::text::jinja
