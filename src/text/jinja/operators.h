// Python's operators and conversions. Errors that Python would raise are DataErrors with the template's line.
#pragma once

#include <string>

#include "text/jinja/runtime.h"
#include "text/text_search.h"

namespace lockstep::text::jinja {

bool truth(const Value& value);

// str() and repr(). FormatError for what Python writes with an address (functions, generators).
void append_str(Runtime& runtime, std::string& out, const Value& value);
void append_repr(Runtime& runtime, std::string& out, const Value& value);
std::string str(Runtime& runtime, const Value& value);
std::string repr(Runtime& runtime, const Value& value);
// markupsafe.escape, as text.
std::string escaped(Runtime& runtime, const Value& value);

bool equal(Runtime& runtime, const Value& a, const Value& b);
// `symbol` is <, <=, > or >=.
bool ordered(Runtime& runtime, const Value& a, const Value& b, std::string_view symbol);
// Where `part` begins in `text`; npos. Linear in both, and charged by what it takes.
size_t find_text(Runtime& runtime, std::string_view text, std::string_view part, bool from_right = false);
// The same for a part that is looked for again and again, and is not empty.
class Finder {
 public:
  Finder(Runtime& runtime, std::string_view part, bool from_right = false);
  size_t find(std::string_view text) const;

 private:
  Runtime& runtime_;
  TextSearch search_;
};
bool contains(Runtime& runtime, const Value& container, const Value& item);
bool is_hashable(Runtime& runtime, const Value& value);
// The value of a key that is equal; nullptr if there is none. The key must be hashable.
const Value* look_up(Runtime& runtime, const Pairs& items, const Value& key);
void store(Runtime& runtime, Pairs& items, const Value& key, Value value);  // DataError: unhashable

Value arithmetic(Runtime& runtime, BinaryOperator op, const Value& a, const Value& b);
Value negative(Runtime& runtime, const Value& value, bool minus);

bool is_iterable(const Value& value);
// Items of something, kept alive: `for (const Value& item : iterate(...))`.
class Items {
 public:
  explicit Items(std::shared_ptr<const Values> held) : held_(std::move(held)) {}
  Values::const_iterator begin() const { return held_->begin(); }
  Values::const_iterator end() const { return held_->end(); }
  size_t size() const { return held_->size(); }
  const Value& operator[](size_t place) const { return (*held_)[place]; }
  const std::shared_ptr<const Values>& held() const { return held_; }

 private:
  std::shared_ptr<const Values> held_;
};
// What is left of an iterator, which is then used up. DataError: not iterable.
Items iterate(Runtime& runtime, const Value& value);
std::optional<Int> length(const Value& value);  // nothing: the type has no length

// Byte at which a character of a text begins; the end of the text for the one behind the last.
size_t byte_of_character(Runtime& runtime, const String& string, size_t place);
// object.name and object[key] as the sandbox finds them: undefined where Python's environment gives that.
Value get_attribute(Runtime& runtime, const Value& object, const Value& name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);
// object[start:stop:step]; none where a part is left out. DataError: not sliceable.
Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);
// "a.0.b" of map(attribute=...), sort and so on.
Value get_path(Runtime& runtime, const Value& object, const Value& path);
Value range_of(Runtime& runtime, Int start, Int stop, Int step);  // DataError: more than 100000 items

// The method `name` of str, list, dict ...: bound; missing if the type has none. What would change its object, or
// starts with an underscore, is undefined; FormatError for a method that exists and is not supported.
Value find_method(Runtime& runtime, const Value& object, std::string_view name);

// str % value, and str.format.
std::string percent_format(Runtime& runtime, const std::string& format, const Value& value);
std::string brace_format(Runtime& runtime, const std::string& format, const Arguments& arguments);

// json.dumps.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace lockstep::text::jinja
