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
// key, more than kMaxJsonDepth lists and objects inside one another (what reads a value may call itself).
inline constexpr int kMaxJsonDepth = 500;
Json parse_json(std::string_view text, const std::string& where);
// The same with keys in the order of the text. `number_texts`, if given, receives the numbers of the outermost object
// that are no integers of 64 bits, as written: a double would lose the "3.50" of a label. `values_left`, if given,
// bounds how many values (lists and objects, too) there may be, and is lowered by those read; more: FormatError. A text
// of three bytes a value becomes 16 times as much memory.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               std::map<std::string, std::string>* number_texts = nullptr,
                               size_t* values_left = nullptr);
// Of a file, of at most `most` bytes (more: FormatError, and it is not read). DataError: it cannot be read.
inline constexpr size_t kMaxJsonFileBytes = size_t{16} << 20;
Json read_json(const std::string& path, size_t most = kMaxJsonFileBytes);

// JSON as text, on one line or with `indent` spaces. Bytes that are no UTF-8, as paths and names from the command line
// may have them, become U+FFFD: what was computed is never lost because it cannot be written.
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
