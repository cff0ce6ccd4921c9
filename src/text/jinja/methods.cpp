// Which methods the types have; those of dicts, lists, loops and cyclers.
#include "text/jinja/methods.h"

#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

Value row_of(Runtime& runtime, const Dict& dict, Flavour flavour) {
  Values items;
  runtime.charge(dict.items.size() * sizeof(Value));
  for (const auto& [key, value] : dict.items)
    items.push_back(flavour == Flavour::keys     ? key
                    : flavour == Flavour::values ? value
                                                 : runtime.row({key, value}, Flavour::tuple));
  return runtime.row(std::move(items), flavour);
}

template <Flavour flavour>
Value view(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "view", arguments, {});
  return row_of(runtime, self.dict(), flavour);
}

Value get(Runtime& runtime, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) runtime.fail("dict.get() takes no keyword arguments");
  const Values given = bound(runtime, "get", arguments, {"key", "default"}, 1);
  if (!is_hashable(runtime, given[0])) runtime.fail("unhashable type: '" + std::string(type_name(given[0])) + "'");
  if (const Value* found = look_up(runtime, self.dict().items, given[0])) return *found;
  return given[1].is_missing() ? Value::none() : given[1];
}

Value copy(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "copy", arguments, {});
  return self.is(Kind::dict) ? runtime.dict(self.dict().items) : runtime.row(self.sequence().items);
}

Value index(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "index", arguments, {"value", "start", "stop"}, 1);
  const Values& items = self.sequence().items;
  const Int size = static_cast<Int>(items.size());
  const auto edge = [&](const Value& value, Int fallback) {
    if (value.is_missing()) return fallback;
    const Int place = need_integer(runtime, value);
    return std::clamp<Int>(place < 0 ? place + size : place, 0, size);
  };
  for (Int i = edge(given[1], 0), stop = edge(given[2], size); i < stop; ++i) {
    const Value& item = items[static_cast<size_t>(i)];
    if (item.same(given[0]) || equal(runtime, item, given[0])) return Value(i);
  }
  runtime.fail(repr(runtime, given[0]) + " is not in list");
}

Value count_items(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "count", arguments, {"value"}, 1);
  Int found = 0;
  for (const Value& item : self.sequence().items)
    found += item.same(given[0]) || equal(runtime, item, given[0]) ? 1 : 0;
  return Value(found);
}

Value cycle(Runtime& runtime, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) runtime.fail("no items for cycling given");
  return arguments.positional[static_cast<size_t>(self.loop().index0) % arguments.positional.size()];
}

Value changed(Runtime& runtime, const Value& self, Arguments& arguments) {
  Loop& loop = self.loop();
  bool same = loop.has_changed_value && loop.changed_value.size() == arguments.positional.size();
  for (size_t i = 0; same && i < arguments.positional.size(); ++i)
    same = equal(runtime, loop.changed_value[i], arguments.positional[i]);
  if (same) return Value(false);
  if (!loop.pull && !loop.items) return Value(true);
  loop.has_changed_value = true;
  loop.changed_value = arguments.positional;
  return Value(true);
}

Value next_of_cycle(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "next", arguments, {});
  Turn& turn = self.turn();
  const Value value = turn.items[turn.next];
  turn.next = (turn.next + 1) % turn.items.size();
  return value;
}

Value reset(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "reset", arguments, {});
  self.turn().next = 0;
  return Value::none();
}

constexpr MethodRow kDict[] = {{"get", get},
                               {"items", view<Flavour::items>},
                               {"keys", view<Flavour::keys>},
                               {"values", view<Flavour::values>},
                               {"copy", copy},
                               {"fromkeys", nullptr}};
constexpr MethodRow kList[] = {{"index", index}, {"count", count_items}, {"copy", copy}};
constexpr MethodRow kTuple[] = {{"index", index}, {"count", count_items}, {"grouper", nullptr}, {"list", nullptr}};
constexpr MethodRow kRange[] = {
    {"index", index}, {"count", count_items}, {"start", nullptr}, {"stop", nullptr}, {"step", nullptr}};
constexpr MethodRow kView[] = {{"mapping", nullptr}, {"isdisjoint", nullptr}};
constexpr MethodRow kIterator[] = {{"send", nullptr}, {"throw", nullptr}, {"close", nullptr}};
constexpr MethodRow kLoop[] = {{"cycle", cycle}, {"changed", changed}};
constexpr MethodRow kCycler[] = {{"next", next_of_cycle}, {"reset", reset}, {"items", nullptr}, {"pos", nullptr}};
constexpr MethodRow kJoiner[] = {{"sep", nullptr}, {"used", nullptr}};
constexpr MethodRow kMacro[] = {{"name", nullptr},         {"arguments", nullptr},     {"caller", nullptr},
                                {"catch_kwargs", nullptr}, {"catch_varargs", nullptr}, {"explicit_caller", nullptr}};
constexpr MethodRow kInteger[] = {{"real", nullptr},       {"imag", nullptr},
                                  {"numerator", nullptr},  {"denominator", nullptr},
                                  {"bit_length", nullptr}, {"bit_count", nullptr},
                                  {"conjugate", nullptr},  {"to_bytes", nullptr},
                                  {"from_bytes", nullptr}, {"as_integer_ratio", nullptr}};
constexpr MethodRow kReal[] = {
    {"real", nullptr},    {"imag", nullptr},      {"is_integer", nullptr},      {"hex", nullptr},
    {"fromhex", nullptr}, {"conjugate", nullptr}, {"as_integer_ratio", nullptr}};
// What would change its object; the sandbox refuses.
constexpr std::string_view kListChanges[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

std::span<const MethodRow> methods_of(const Value& value) {
  switch (value.kind()) {
    case Kind::string: return string_methods();
    case Kind::dict: return kDict;
    case Kind::loop: return kLoop;
    case Kind::turn: return value.turn().joiner ? std::span<const MethodRow>(kJoiner) : kCycler;
    case Kind::macro: return kMacro;
    case Kind::boolean:
    case Kind::integer: return kInteger;
    case Kind::real: return kReal;
    case Kind::sequence: break;
    default: return {};
  }
  switch (value.sequence().flavour) {
    case Flavour::list: return kList;
    case Flavour::tuple: return kTuple;
    case Flavour::range: return kRange;
    case Flavour::iterator: return kIterator;
    default: return kView;
  }
}

bool changes(const Value& object, std::string_view name) {
  if (object.is_sequence(Flavour::list)) return std::ranges::count(kListChanges, name) > 0;
  return object.is(Kind::dict) && std::ranges::count(kDictChanges, name) > 0;
}

}  // namespace

Value find_method(Runtime& runtime, const Value& object, std::string_view name) {
  if (changes(object, name))
    return runtime.undefined("access to attribute " + repr(name) + " of " + repr(type_name(object)) +
                             " object is unsafe.");
  if (object.is(Kind::turn) && !object.turn().joiner && name == "current")
    return object.turn().items[object.turn().next];
  const auto methods = methods_of(object);
  const auto found = std::ranges::find(methods, name, &MethodRow::name);
  if (found == methods.end()) return {};
  if (found->call == nullptr)
    runtime.unsupported("the attribute " + repr(name) + " of a " + std::string(type_name(object)));
  runtime.charge(sizeof(Callable));
  runtime.step(4);
  return Value(std::shared_ptr<const Callable>(
      std::make_shared<Callable>(Callable{.name = found->name, .self = object, .call = found->call})));
}

}  // namespace lockstep::text::jinja
