#include "server/protocol/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

std::string shown(const OrderedJson& value) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

[[noreturn]] void wrong_type(const std::string& name, const OrderedJson& got, std::string_view wanted) {
  throw ApiError(400, fmt::format("`{}` must be {}, got {}.", name, wanted, shown(got)), name, "Bad Request");
}

// nullopt: not an integer of 64 bits.
std::optional<int64_t> as_integer(const OrderedJson& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!value.is_number_float() || std::abs(value.get<double>()) > kExact) return std::nullopt;
  const double number = value.get<double>();
  return std::trunc(number) == number ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

}  // namespace

Fields::Fields(const OrderedJson& body, std::string inside) : body_(&body), inside_(std::move(inside)) {
  if (!body.is_object())
    wrong_type(inside_.empty() ? "body" : inside_.substr(0, inside_.size() - 1), body, "a JSON object");
  // Each field that is read is looked for among all of them.
  constexpr size_t kMaxFields = 1024;
  if (body.size() > kMaxFields)
    throw bad_request(fmt::format("The object has {} fields, at most {} are allowed.", body.size(), kMaxFields),
                      inside_.empty() ? "body" : inside_.substr(0, inside_.size() - 1));
}

const OrderedJson* Fields::find(std::string_view name) const {
  const auto found = body_->find(std::string(name));
  return found == body_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::wrong(std::string_view name, const OrderedJson& got, std::string_view wanted) const {
  wrong_type(full_name(name), got, wanted);
}

std::optional<int64_t> Fields::integer(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = as_integer(*value);
  if (!number) wrong(name, *value, "an integer");
  return number;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) const {
  const std::optional<int64_t> number = integer(name);
  if (number && *number < low)
    throw bad_request(fmt::format("`{}` must be at least {}, got {}.", full_name(name), low, *number), full_name(name));
  if (number && *number > high)
    throw bad_request(fmt::format("`{}` must be at most {}, got {}.", full_name(name), high, *number), full_name(name));
  return number;
}

std::optional<double> Fields::number(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong(name, *value, "a number");
  return value->get<double>();
}

std::optional<double> Fields::number(std::string_view name, double low, double high, std::string_view range) const {
  const std::optional<double> value = number(name);
  if (value && !(*value >= low && *value <= high))
    throw bad_request(fmt::format("`{}` must be {}, got {}.", full_name(name), range, *value), full_name(name));
  return value;
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(name, *value, "a string");
  return value->get<std::string>();
}

std::string Fields::required_string(std::string_view name) const {
  const std::optional<std::string> value = string(name);
  if (!value) throw ApiError(400, fmt::format("`{}` is required.", full_name(name)), full_name(name), "Bad Request");
  return *value;
}

std::optional<std::vector<std::string>> Fields::strings(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector{value->get<std::string>()};
  if (!value->is_array()) wrong(name, *value, "a string or a list of strings");
  std::vector<std::string> texts;
  for (const OrderedJson& item : *value) {
    if (!item.is_string()) wrong(name, item, "a string or a list of strings");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<int32_t>> Fields::ids(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_ids(*value, full_name(name));
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  return Fields(*value, full_name(name) + ".");
}

std::vector<int32_t> read_ids(const OrderedJson& list, const std::string& name) {
  if (!list.is_array()) wrong_type(name, list, "a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    const std::optional<int64_t> id = as_integer(item);
    if (!id || *id < 0 || *id > kMaxTokens) wrong_type(name, item, "a list of token ids, none negative");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

OrderedJson read_body(const HttpRequest& request, bool must_be_json) {
  std::string type(request.header("content-type"));
  type = type.substr(0, type.find(';'));
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  while (type.ends_with(' ')) type.pop_back();
  if (must_be_json && type != "application/json")
    throw ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed", "", "Bad Request");
  OrderedJson body;
  try {
    size_t values_left = kMaxJsonValues;
    body = parse_ordered_json(request.body, "body", nullptr, &values_left);
  } catch (const FormatError& error) {
    throw ApiError(400, one_line(error.fault()), "body", "Bad Request");
  }
  if (!body.is_object()) wrong_type("body", body, "a JSON object");
  return body;
}

}  // namespace lockstep::server
