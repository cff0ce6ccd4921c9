#include "text/component.h"

#include "core/error.h"
#include "core/utf8.h"

namespace lockstep::text {

namespace {

void visit(const Json& component, const std::string& where, const char* list_key, int depth,
           const std::function<void(const Json&, const std::string&)>& use) {
  if (component_type(component, where) != "Sequence") return use(component, where);
  const auto list = component.find(list_key);
  if (list == component.end() || !list->is_array())
    throw FormatError(
        {.what = "a value has the wrong type", .where = where + ": Sequence: " + list_key, .wanted = "a list"});
  if (depth == kMaxComponentDepth) unsupported_component(where, "Sequence", "fewer sequences within sequences");
  for (const Json& inner : *list) visit(inner, where + ": Sequence", list_key, depth + 1, use);
}

}  // namespace

void unsupported_component(const std::string& where, const std::string& got, const std::string& wanted) {
  throw FormatError({.what = "unsupported tokenizer component", .where = where, .got = got, .wanted = wanted});
}

std::string shown_json(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200);
}

std::string component_type(const Json& component, const std::string& where) {
  if (!component.is_object() || !component.contains("type") || !component["type"].is_string())
    unsupported_component(where, shown_json(component), "an object with a type");
  return component["type"].get<std::string>();
}

void for_each_component(const Json& component, const std::string& where, const char* list_key,
                        const std::function<void(const Json&, const std::string&)>& use) {
  visit(component, where, list_key, 0, use);
}

std::string one_character(const JsonObject& component, const char* key, const std::string& fallback) {
  const std::string text = component.string(key, fallback);
  if (text.empty() || read_utf8(text).size != text.size())
    throw FormatError({.what = "a value has the wrong type",
                       .where = component.where() + ": " + key,
                       .got = text,
                       .wanted = "one character"});
  return text;
}

}  // namespace lockstep::text
