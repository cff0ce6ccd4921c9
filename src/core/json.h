// JSON glue over nlohmann-json: parse errors and type errors become FormatError / DataError that name file and key.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lockstep {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// `where` names the source in errors ("DIR/config.json"). Throws FormatError: invalid JSON, invalid UTF-8, a duplicate
// key, nesting deeper than kMaxJsonDepth (so that code may process values recursively).
inline constexpr int kMaxJsonDepth = 500;
Json parse_json(std::string_view text, const std::string& where);
// The same with keys in the order of the text. `number_texts`, if given, receives the text of each number of the
// outermost object that is not a 64-bit integer: a double would lose the "3.50" of a label. `values_left`, if given,
// limits the number of values (lists and objects included) and is reduced by those read; more: FormatError. A value of
// three bytes of text takes 16 times as much memory.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               std::map<std::string, std::string>* number_texts = nullptr,
                               size_t* values_left = nullptr);
// Of a file of at most `most` bytes (larger: FormatError, unread). DataError: it cannot be read.
inline constexpr size_t kMaxJsonFileBytes = size_t{16} << 20;
Json read_json(const std::string& path, size_t most = kMaxJsonFileBytes);

// JSON as text, on one line or with `indent` spaces. Bytes that are not UTF-8, as in paths from the command line,
// become U+FFFD: results are never lost because a name cannot be written.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);

// An object of a known file with typed access. A missing key without a default, or a value of another type, is a
// FormatError that names file, key, the value found and the type wanted. Integers are range checked; a bool is never a
// number.
class JsonObject {
 public:
  JsonObject(const Json& value, std::string where);  // FormatError unless an object
  bool has(std::string_view key) const;              // present and not null
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t fallback) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, const std::string& fallback) const;
  JsonObject object(std::string_view key) const;
  const Json& value(std::string_view key) const;  // FormatError if absent
  const Json& json() const { return *json_; }
  const std::string& where() const { return where_; }

 private:
  const Json* json_;
  std::string where_;
};

}  // namespace lockstep
