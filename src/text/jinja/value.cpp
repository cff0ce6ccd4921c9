#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/loop.h"

namespace lockstep::text::jinja {

bool Value::is_sequence(Flavour flavour) const {
  return is(Kind::sequence) && sequence().flavour == flavour;
}

bool Value::same(const Value& other) const {
  if (kind() != other.kind()) return false;
  constexpr Int kShared = 257;  // CPython keeps one object of each integer from -5 to 256
  switch (kind()) {
    case Kind::integer: return integer() == other.integer() && integer() >= -5 && integer() < kShared;
    case Kind::real: return false;
    case Kind::undefined: return &undefined() == &other.undefined();
    case Kind::callable: return false;  // a method is a new object each time it is looked up
    default: return held_ == other.held_;
  }
}

std::string Undefined::message() const {
  if (!hint.empty()) return hint;
  const std::string named = name.is_string()                ? repr(name.text())
                            : name.is(Value::Kind::integer) ? text_of(name.integer())
                                                            : "it";
  if (owner.empty()) return named + " is undefined";
  return name.is_string() ? "'" + owner + "' has no attribute " + named : owner + " has no element " + named;
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none: return "NoneType";
    case Value::Kind::boolean: return "bool";
    case Value::Kind::integer: return "int";
    case Value::Kind::real: return "float";
    case Value::Kind::string: return value.string().markup ? "Markup" : "str";
    case Value::Kind::dict: return "dict";
    case Value::Kind::space: return "Namespace";
    case Value::Kind::callable: {
      const Callable& callable = value.callable();
      if (!callable.self.is_missing()) return "builtin_function_or_method";
      return callable.name == "range" || callable.name.find('_') != std::string_view::npos ? "function" : "type";
    }
    case Value::Kind::macro: return "Macro";
    case Value::Kind::loop: return "LoopContext";
    case Value::Kind::turn: return value.turn().joiner ? "Joiner" : "Cycler";
    case Value::Kind::missing:
    case Value::Kind::undefined: return "Undefined";
    case Value::Kind::sequence: break;
  }
  switch (value.sequence().flavour) {
    case Flavour::list: return "list";
    case Flavour::tuple: return "tuple";
    case Flavour::range: return "range";
    case Flavour::keys: return "dict_keys";
    case Flavour::values: return "dict_values";
    case Flavour::items: return "dict_items";
    case Flavour::iterator: return value.sequence().name;
  }
  return "object";
}

std::string owner_name(const Value& value) {
  if (value.is_none()) return "None";
  std::string module;
  if (value.is_string() && value.string().markup) module = "markupsafe.";
  if (value.is(Value::Kind::space) || value.is(Value::Kind::turn)) module = "jinja2.utils.";
  if (value.is(Value::Kind::loop) || value.is(Value::Kind::macro)) module = "jinja2.runtime.";
  return module + std::string(type_name(value)) + " object";
}

int depth_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::sequence: return value.sequence().depth;
    case Value::Kind::dict: return value.dict().depth;
    case Value::Kind::callable: return depth_of(value.callable().self) + 1;
    case Value::Kind::loop: return value.loop().depth_of_items + 1;
    default: return 0;
  }
}

Value make_string(std::string text, bool markup) {
  const size_t length = count_characters(text);
  return Value(std::shared_ptr<const String>(std::make_shared<String>(String{std::move(text), length, markup})));
}

const Value* find_key(const Dict& dict, std::string_view key) {
  const auto found = std::ranges::find_if(
      dict.items, [&](const auto& item) { return item.first.is_string() && item.first.text() == key; });
  return found == dict.items.end() ? nullptr : &found->second;
}

}  // namespace lockstep::text::jinja
