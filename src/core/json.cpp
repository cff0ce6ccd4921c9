#include "core/json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
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

[[noreturn]] void nested_too_deeply(const std::string& where) {
  throw FormatError({.what = "JSON is nested too deeply",
                     .where = where,
                     .wanted = "at most " + std::to_string(kMaxJsonDepth) + " lists and objects inside one another"});
}

[[noreturn]] void too_many_values(const std::string& where) {
  throw FormatError({.what = "JSON holds too many values", .where = where});
}

[[noreturn]] void key_twice(const std::string& where, const std::string& key) {
  throw FormatError({.what = "a key appears twice in one JSON object", .where = where, .got = shown(key)});
}

// Builds a value from the library's events. The library's own builder looks through all keys of an object for each new
// one, so a hostile line could keep it busy for hours.
class OrderedBuilder : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedBuilder(const std::string& where, std::map<std::string, std::string>* number_texts, size_t* values_left)
      : where_(where), number_texts_(number_texts), values_left_(values_left) {}
  OrderedJson take() { return std::move(root_); }

  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(int64_t value) override { return put(value), true; }
  bool number_unsigned(uint64_t value) override { return put(value), true; }
  bool string(std::string& value) override { return put(std::move(value)), true; }
  bool binary(OrderedJson::binary_t&) override { return false; }
  bool number_float(double value, const std::string& text) override {
    if (number_texts_ != nullptr && open_.size() == 1 && open_[0].value->is_object())
      number_texts_->emplace(open_[0].value->get_ref<const OrderedJson::object_t&>().back().first, text);
    return put(value), true;
  }
  bool start_object(size_t) override { return enter(OrderedJson::object()); }
  bool start_array(size_t) override { return enter(OrderedJson::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(std::string& name) override {
    Open& open = open_.back();
    auto& members = open.value->get_ref<OrderedJson::object_t&>();
    if (is_known(open, members, name)) key_twice(where_, name);
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw FormatError({.what = "invalid JSON", .where = where_, .got = library_reason(error)});
  }

 private:
  struct Open {
    OrderedJson* value;
    std::optional<std::unordered_set<std::string>> keys = {};  // of an object with many
  };

  static bool is_known(Open& open, const OrderedJson::object_t& members, const std::string& name) {
    constexpr size_t kFew = 16;
    if (members.size() < kFew)
      return std::any_of(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
    if (!open.keys) {
      open.keys.emplace();
      for (const auto& member : members) open.keys->insert(member.first);
    }
    return !open.keys->insert(name).second;
  }

  template <class Value>
  OrderedJson* put(Value&& value) {
    if (values_left_ != nullptr && (*values_left_)-- == 0) too_many_values(where_);
    if (open_.empty()) return &(root_ = std::forward<Value>(value));
    OrderedJson& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.get_ref<OrderedJson::array_t&>().emplace_back(std::forward<Value>(value));
      return &parent.back();
    }
    return &(parent.get_ref<OrderedJson::object_t&>().back().second = std::forward<Value>(value));
  }

  bool enter(OrderedJson container) {
    if (open_.size() == kMaxJsonDepth) nested_too_deeply(where_);
    open_.push_back({put(std::move(container))});
    return true;
  }

  const std::string& where_;
  std::map<std::string, std::string>* number_texts_;
  size_t* values_left_;
  OrderedJson root_;
  std::vector<Open> open_;
};

}  // namespace

OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               std::map<std::string, std::string>* number_texts, size_t* values_left) {
  OrderedBuilder builder(where, number_texts, values_left);
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of every object that is open
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) nested_too_deeply(where);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      key_twice(where, parsed.get_ref<const std::string&>());
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    throw FormatError({.what = "invalid JSON", .where = where, .got = library_reason(error)});
  }
}

Json read_json(const std::string& path, size_t most) {
  return parse_json(fs::read_file(path, {}, most), path);
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}
std::string json_text(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
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
