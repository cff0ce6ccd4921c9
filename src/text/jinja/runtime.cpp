#include "text/jinja/runtime.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
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

Runtime::Runtime(std::string where, const RenderLimits& limits, std::optional<std::tm> now)
    : where_(std::move(where)),
      limits_(limits),
      steps_left_(limits.max_steps),
      bytes_left_(limits.max_bytes),
      now_(now) {
  look_at_limits();
}

void Runtime::look_at_limits() {
  constexpr int64_t kStepsBetween = 50'000;
  if (steps_left_ < 0) exhausted("many steps");
  if (!limits_.deadline) return;
  if (std::chrono::steady_clock::now() >= *limits_.deadline) exhausted("much time");
  next_look_ = std::max<int64_t>(steps_left_ - kStepsBetween, 0);
}

std::string Runtime::place() const {
  return where_ + " line " + std::to_string(line);
}

void Runtime::charge(size_t bytes) {
  if (bytes > bytes_left_) exhausted("many bytes");
  bytes_left_ -= bytes;
  pass(bytes);
}

void Runtime::exhausted(const std::string& what) const {
  throw FormatError({.what = "the template takes too " + what,
                     .where = place(),
                     .attempt = "look for an endless recursion, loops in loops, or a text that grows in a loop"});
}

void Runtime::fail(const std::string& reason) const {
  constexpr size_t kLongest = 4096;  // a template can put any text into a message
  const std::string_view shown = std::string_view(reason).substr(0, kLongest);
  throw DataError(
      {.what = shown.size() == reason.size() ? reason : std::string(reason, 0, valid_utf8_prefix(shown)) + "...",
       .where = place()});
}

void Runtime::unsupported(const std::string& construct) const {
  throw FormatError({.what = "not supported in templates: " + construct, .where = place()});
}

void Runtime::need_defined(const Value& value) const {
  if (value.is_undefined()) fail(value.undefined().message());
}

Value Runtime::text(std::string utf8, bool markup) {
  charge(utf8.size() + sizeof(String));
  step();
  return make_string(std::move(utf8), markup);
}

std::u32string Runtime::codes(std::string_view utf8) {
  charge_codes(utf8);
  return to_codes(utf8);
}

void Runtime::charge_codes(std::string_view utf8) {
  charge(utf8.size() * sizeof(char32_t));
  pass_slowly(utf8.size());
}

int Runtime::checked_depth(int depth) const {
  if (depth > kMaxContainerDepth) exhausted("many levels");
  return depth;
}

Value Runtime::row(Values items, Flavour flavour) {
  charge(sizeof(Sequence) + items.size() * sizeof(Value));
  step(static_cast<int64_t>(1 + items.size() / 8));
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
  step(static_cast<int64_t>(1 + items.size() / 4));
  auto made = std::make_shared<Dict>();
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max({depth, depth_of(key), depth_of(value)});
  made->depth = checked_depth(depth + 1);
  made->items = std::move(items);
  return Value(std::shared_ptr<const Dict>(std::move(made)));
}

Value Runtime::undefined(std::string hint) {
  charge(sizeof(Undefined) + hint.size());
  step(4);
  return Value(std::shared_ptr<const Undefined>(std::make_shared<Undefined>(Undefined{.hint = std::move(hint)})));
}

Value Runtime::undefined_variable(const std::string& name) {
  charge(sizeof(Undefined) + sizeof(String) + name.size());
  step(4);
  return Value(std::shared_ptr<const Undefined>(
      std::make_shared<Undefined>(Undefined{.hint = "", .owner = "", .name = make_string(name)})));
}

Value Runtime::undefined_member(const Value& owner, const Value& name) {
  charge(sizeof(Undefined));
  step(4);
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
