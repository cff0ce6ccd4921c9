#include "text/row_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::text {

namespace {

constexpr RowShape kShapes[] = {RowShape::tokens,   RowShape::preference,
                                RowShape::messages, RowShape::prompt_completion,
                                RowShape::text,     RowShape::prompt_label};

enum class Wanted { list, string, conversation, string_or_conversation, anything };

struct Key {
  const char* name;
  Wanted wanted;
};

std::vector<Key> keys_of(RowShape shape) {
  switch (shape) {
    case RowShape::tokens: return {{"tokens", Wanted::list}, {"loss_mask", Wanted::list}};
    case RowShape::preference:
      return {{"chosen", Wanted::string_or_conversation}, {"rejected", Wanted::string_or_conversation}};
    case RowShape::messages: return {{"messages", Wanted::conversation}};
    case RowShape::prompt_completion:
      return {{"prompt", Wanted::string_or_conversation}, {"completion", Wanted::string_or_conversation}};
    case RowShape::text: return {{"text", Wanted::string}};
    case RowShape::prompt_label: return {{"prompt", Wanted::string_or_conversation}, {"label", Wanted::anything}};
  }
  return {};
}

bool has(const Row& row, const char* key) {
  const auto found = row.json.find(key);
  return found != row.json.end() && !found->is_null();
}

bool fits(const OrderedJson& value, Wanted wanted) {
  switch (wanted) {
    case Wanted::list: return value.is_array();
    case Wanted::string: return value.is_string();
    case Wanted::conversation: return is_conversation(value);
    case Wanted::string_or_conversation: return value.is_string() || is_conversation(value);
    case Wanted::anything: return true;
  }
  return false;
}

const char* wanted_text(Wanted wanted) {
  switch (wanted) {
    case Wanted::list: return "a list";
    case Wanted::string: return "a string";
    case Wanted::conversation: return "a list of messages with role and content";
    default: return "a string, or a list of messages with role and content";
  }
}

void check(const Dataset& data, const Row& row, const Key& key) {
  const OrderedJson& value = row.json.at(key.name);
  if (fits(value, key.wanted)) return;
  throw DataError({.what = "a field has the wrong type",
                   .where = data.where(row) + ": " + key.name,
                   .got = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace).substr(0, 100),
                   .wanted = wanted_text(key.wanted)});
}

// Both strings or both conversations.
void check_alike(const Dataset& data, const Row& row, const Key& a, const Key& b) {
  if (row.json.at(a.name).is_string() == row.json.at(b.name).is_string()) return;
  throw DataError({.what = "two fields of different kinds",
                   .where = data.where(row),
                   .got = fmt::format("one of {} and {} is a string, the other a list of messages", a.name, b.name),
                   .wanted = "two strings or two lists of messages"});
}

[[noreturn]] void no_shape(const Dataset& data, const Row& row) {
  std::vector<std::string> found, wanted;
  for (const auto& [key, value] : row.json.items()) found.push_back(value.is_null() ? key + " (null)" : key);
  for (RowShape shape : kShapes) wanted.push_back(row_shape_name(shape));
  throw DataError({.what = "a row of no known shape",
                   .where = data.where(row),
                   .got = fmt::format("keys {}", fmt::join(found, ", ")),
                   .wanted = fmt::format("one of: {}", fmt::join(wanted, "; "))});
}

}  // namespace

const char* row_shape_name(RowShape shape) {
  constexpr const char* kNames[] = {
      "tokens + loss_mask", "chosen + rejected", "messages", "prompt + completion", "text", "prompt + label"};
  return kNames[static_cast<int>(shape)];
}

bool is_conversation(const OrderedJson& value) {
  const auto is_message = [](const OrderedJson& message) {
    return message.is_object() && message.contains("role") && message.at("role").is_string();
  };
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_message);
}

RowShape row_shape(const Dataset& data, const Row& row) {
  for (RowShape shape : kShapes) {
    const std::vector<Key> keys = keys_of(shape);
    if (!std::all_of(keys.begin(), keys.end(), [&](const Key& key) { return has(row, key.name); })) continue;
    for (const Key& key : keys) check(data, row, key);
    if (shape == RowShape::preference || shape == RowShape::prompt_completion) check_alike(data, row, keys[0], keys[1]);
    return shape;
  }
  no_shape(data, row);
}

}  // namespace lockstep::text
