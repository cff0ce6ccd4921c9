#include "text/jinja/runtime.h"

#include <algorithm>

#include "core/error.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

Value* Scope::find(int32_t name) {
  const auto found = std::ranges::find(variables, name, &std::pair<int32_t, Value>::first);
  return found == variables.end() ? nullptr : &found->second;
}

void Scope::set(int32_t name, Value value) {
  if (Value* found = find(name))
    *found = std::move(value);
  else
    variables.emplace_back(name, std::move(value));
}

std::string Runtime::place() const {
  return where_ + " line " + std::to_string(line);
}

void Runtime::charge(size_t bytes) {
  if (bytes > limits_.bytes) exhausted("memory");
  limits_.bytes -= bytes;
}

void Runtime::exhausted(const std::string& what) const {
  throw FormatError({.what = "the template takes too many " + (what == "memory"  ? "bytes"
                                                               : what == "depth" ? "levels"
                                                                                 : what),
                     .where = place(),
                     .attempt = "look for an endless recursion or a text that grows in a loop"});
}

void Runtime::fail(const std::string& reason) const {
  throw DataError({.what = reason, .where = place()});
}

void Runtime::unsupported(const std::string& construct) const {
  throw FormatError({.what = "not supported in templates: " + construct, .where = place()});
}

void Runtime::need_defined(const Value& value) const {
  if (value.is_undefined()) fail(value.undefined().message());
}

Value Runtime::text(std::string utf8, bool markup) {
  charge(utf8.size() + sizeof(String));
  return make_string(std::move(utf8), markup);
}

int Runtime::checked_depth(int depth) const {
  if (depth > kMaxContainerDepth) exhausted("depth");
  return depth;
}

Value Runtime::row(Values items, Flavour flavour) {
  charge(sizeof(Sequence) + items.size() * sizeof(Value));
  auto made = std::make_shared<Sequence>();
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  made->depth = checked_depth(depth + 1);
  made->flavour = flavour;
  made->items = std::move(items);
  return Value(std::move(made));
}

Value Runtime::dict(Pairs items) {
  charge(sizeof(Dict) + 2 * items.size() * sizeof(Value));
  auto made = std::make_shared<Dict>();
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max({depth, depth_of(key), depth_of(value)});
  made->depth = checked_depth(depth + 1);
  made->items = std::move(items);
  return Value(std::shared_ptr<const Dict>(std::move(made)));
}

Value Runtime::undefined(std::string hint) {
  charge(sizeof(Undefined) + hint.size());
  return Value(std::shared_ptr<const Undefined>(std::make_shared<Undefined>(Undefined{.hint = std::move(hint)})));
}

Value Runtime::undefined_variable(const std::string& name) {
  charge(sizeof(Undefined));
  return Value(std::shared_ptr<const Undefined>(
      std::make_shared<Undefined>(Undefined{.hint = "", .owner = "", .name = make_string(name)})));
}

Value Runtime::undefined_member(const Value& owner, const Value& name) {
  charge(sizeof(Undefined));
  if (!name.is_string() && !name.is(Value::Kind::integer))
    return undefined(owner_name(owner) + " has no element " + repr(*this, name));
  return Value(std::shared_ptr<const Undefined>(
      std::make_shared<Undefined>(Undefined{.hint = "", .owner = owner_name(owner), .name = name})));
}

Value Runtime::integer(Int value) const {
  if (value > kLargestInt || value < -kLargestInt) fail("an integer is too large");
  return Value(value);
}

std::tm Runtime::now() const {
  if (now_) return *now_;
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

}  // namespace lockstep::text::jinja
