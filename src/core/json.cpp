#include "core/json.h"

#include <limits>
#include <set>
#include <vector>

#include "core/fs.h"

namespace lockstep {

namespace {

// nlohmann's texts begin "[json.exception.parse_error.101] ".
std::string library_reason(const Json::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

std::string shown(const Json& value) {
  constexpr size_t kShown = 100;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::string place(const std::string& where, std::string_view key) {
  return where + ": " + std::string(key);
}

[[noreturn]] void wrong_type(const std::string& where, std::string_view key, const Json& got, const char* wanted) {
  throw FormatError(
      {.what = "a value has the wrong type", .where = place(where, key), .got = shown(got), .wanted = wanted});
}

int64_t as_integer(const Json& value, const std::string& where, std::string_view key) {
  if (!value.is_number_integer()) wrong_type(where, key, value, "an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw FormatError({.what = "an integer is out of range",
                       .where = place(where, key),
                       .got = shown(value),
                       .wanted = "at most 9223372036854775807"});
  return value.get<int64_t>();
}

double as_number(const Json& value, const std::string& where, std::string_view key) {
  if (!value.is_number()) wrong_type(where, key, value, "a number");
  return value.get<double>();
}

std::string as_string(const Json& value, const std::string& where, std::string_view key) {
  if (!value.is_string()) wrong_type(where, key, value, "a string");
  return value.get<std::string>();
}

// The value, which must be there and not null.
const Json& required(const JsonObject& object, std::string_view key) {
  if (!object.has(key))
    throw FormatError({.what = "a required key is missing", .where = object.where(), .wanted = std::string(key)});
  return object.value(key);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of every object that is open
  const Json::parser_callback_t reject_duplicates = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw FormatError({.what = "a key appears twice in one JSON object", .where = where, .got = shown(parsed)});
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), reject_duplicates);
  } catch (const Json::exception& error) {
    throw FormatError({.what = "invalid JSON", .where = where, .got = library_reason(error)});
  }
}

Json read_json(const std::string& path) {
  return parse_json(fs::read_file(path), path);
}

JsonObject::JsonObject(const Json& value, std::string where) : json_(&value), where_(std::move(where)) {
  if (!value.is_object())
    throw FormatError(
        {.what = "a value has the wrong type", .where = where_, .got = shown(value), .wanted = "an object"});
}

bool JsonObject::has(std::string_view key) const {
  const auto found = json_->find(std::string(key));
  return found != json_->end() && !found->is_null();
}

const Json& JsonObject::value(std::string_view key) const {
  const auto found = json_->find(std::string(key));
  if (found == json_->end())
    throw FormatError({.what = "a required key is missing", .where = where_, .wanted = std::string(key)});
  return *found;
}

int64_t JsonObject::integer(std::string_view key) const {
  return as_integer(required(*this, key), where_, key);
}
int64_t JsonObject::integer(std::string_view key, int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}
double JsonObject::number(std::string_view key) const {
  return as_number(required(*this, key), where_, key);
}
double JsonObject::number(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
std::string JsonObject::string(std::string_view key) const {
  return as_string(required(*this, key), where_, key);
}
std::string JsonObject::string(std::string_view key, const std::string& fallback) const {
  return has(key) ? string(key) : fallback;
}

bool JsonObject::boolean(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const Json& found = value(key);
  if (!found.is_boolean()) wrong_type(where_, key, found, "true or false");
  return found.get<bool>();
}

JsonObject JsonObject::object(std::string_view key) const {
  return JsonObject(required(*this, key), place(where_, key));
}

}  // namespace lockstep
