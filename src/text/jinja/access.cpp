// Items, attributes, slices, and what can be looped over.
#include <algorithm>

#include "core/utf8.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

size_t end_of_character(std::string_view text, size_t begin) {
  do ++begin;
  while (begin < text.size() && !begins_character(text[begin]));
  return begin;
}

// Index of a row of `size`, from the end if negative; nothing outside.
std::optional<size_t> place_of(Int index, size_t size) {
  const Int place = index < 0 ? index + static_cast<Int>(size) : index;
  if (place < 0 || place >= static_cast<Int>(size)) return {};
  return static_cast<size_t>(place);
}

bool is_subscriptable(Flavour flavour) {
  return flavour == Flavour::list || flavour == Flavour::tuple || flavour == Flavour::range;
}

// object[key] where Python gives a value; missing where it raises TypeError or LookupError.
Value subscript(Runtime& runtime, const Value& object, const Value& key) {
  runtime.need_defined(object);
  if (object.is(Kind::dict)) {
    if (!is_hashable(runtime, key)) return {};
    const Value* found = look_up(runtime, object.dict().items, key);
    return found == nullptr ? Value() : *found;
  }
  if (!key.is_integer()) return {};
  if (object.is_string()) {
    const auto place = place_of(key.integer(), object.string().length);
    if (!place) return {};
    const std::string_view rest =
        std::string_view(object.text()).substr(byte_of_character(runtime, object.string(), *place));
    return runtime.text(std::string(rest.substr(0, end_of_character(rest, 0))), object.string().markup);
  }
  if (!object.is(Kind::sequence) || !is_subscriptable(object.sequence().flavour)) return {};
  const auto place = place_of(key.integer(), object.sequence().items.size());
  return place ? object.sequence().items[*place] : Value();
}

// Attributes that every Python object has.
bool is_python_internal(std::string_view name) {
  static constexpr std::string_view kNames[] = {"__class__",
                                                "__doc__",
                                                "__init__",
                                                "__new__",
                                                "__repr__",
                                                "__str__",
                                                "__eq__",
                                                "__ne__",
                                                "__hash__",
                                                "__dir__",
                                                "__lt__",
                                                "__le__",
                                                "__gt__",
                                                "__ge__",
                                                "__reduce__",
                                                "__reduce_ex__",
                                                "__format__",
                                                "__sizeof__",
                                                "__getattribute__",
                                                "__setattr__",
                                                "__delattr__",
                                                "__subclasshook__",
                                                "__init_subclass__",
                                                "__getstate__"};
  return std::ranges::count(kNames, name) > 0;
}

Value unsafe(Runtime& runtime, const Value& object, std::string_view name) {
  return runtime.undefined("access to attribute " + repr(name) + " of " + repr(type_name(object)) +
                           " object is unsafe.");
}

// getattr(object, name); missing where Python raises AttributeError.
Value attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined() && name.starts_with("__") && name.ends_with("__") && !is_python_internal(name)) return {};
  if (object.is_undefined() && !is_python_internal(name)) runtime.need_defined(object);
  if (object.is(Kind::space)) {
    runtime.step(static_cast<int64_t>(object.space().items.size() / 4));
    for (const auto& [key, value] : object.space().items)
      if (key.text() == name) return name.starts_with('_') ? unsafe(runtime, object, name) : value;
    return {};
  }
  if (is_python_internal(name)) return unsafe(runtime, object, name);
  if (object.is(Kind::loop))
    if (Value found = loop_property(runtime, object.loop(), name); !found.is_missing()) return found;
  return find_method(runtime, object, name);
}

}  // namespace

size_t byte_of_character(Runtime& runtime, const String& string, size_t place) {
  if (string.ascii()) return place;
  if (place == string.length) return string.text.size();
  runtime.pass_slowly(place);
  size_t byte = 0;
  for (; place > 0; --place) byte = end_of_character(string.text, byte);
  return byte;
}

Value loop_property(Runtime& runtime, Loop& loop, std::string_view name) {
  const Int index0 = loop.index0;
  const bool all = name == "length" || name == "revindex" || name == "revindex0",
             ahead = name == "last" || name == "nextitem";
  while (loop.pull && (all || (ahead && static_cast<Int>(loop.items->size()) <= index0 + 1)) && loop.pull()) {
  }
  const Int size = static_cast<Int>(loop.items->size());
  const auto item = [&](Int place, const char* hint) {
    return place >= 0 && place < size ? (*loop.items)[static_cast<size_t>(place)] : runtime.undefined(hint);
  };
  if (name == "index0") return Value(index0);
  if (name == "index") return Value(index0 + 1);
  if (name == "revindex0") return Value(size - index0 - 1);
  if (name == "revindex") return Value(size - index0);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 >= size);
  if (name == "length") return Value(size);
  if (name == "depth0") return Value(Int{loop.depth0});
  if (name == "depth") return Value(Int{loop.depth0 + 1});
  if (name == "previtem") return item(index0 - 1, "there is no previous item");
  if (name == "nextitem") return item(index0 + 1, "there is no next item");
  return {};
}

bool is_iterable(const Value& value) {
  return value.is_string() || value.is(Kind::sequence) || value.is(Kind::dict) || value.is_undefined() ||
         value.is(Kind::loop);
}

Items iterate(Runtime& runtime, const Value& value) {
  auto made = std::make_shared<Values>();
  switch (value.kind()) {
    case Kind::undefined: break;
    case Kind::string: {
      const std::u32string codes = runtime.codes(value.text());
      runtime.charge(codes.size() * (sizeof(Value) + sizeof(String)));
      runtime.step(static_cast<int64_t>(codes.size() * 5));
      for (const char32_t code : codes) made->push_back(make_string(to_utf8({&code, 1})));
      break;
    }
    case Kind::dict:
      runtime.charge(value.dict().items.size() * sizeof(Value));
      for (const auto& [key, item] : value.dict().items) made->push_back(key);
      break;
    case Kind::sequence: {
      Sequence& row = value.sequence();
      const size_t begin = row.next;
      if (row.flavour == Flavour::iterator) row.next = row.items.size();
      if (begin == 0) {
        // A list that holds the row alive: no copy.
        const auto owner = std::make_shared<Value>(value);
        return Items(std::shared_ptr<const Values>(owner, &owner->sequence().items));
      }
      runtime.charge((row.items.size() - begin) * sizeof(Value));
      made->assign(row.items.begin() + static_cast<std::ptrdiff_t>(begin), row.items.end());
      break;
    }
    case Kind::loop: runtime.unsupported("looping over `loop`");
    default: runtime.fail("'" + std::string(type_name(value)) + "' object is not iterable");
  }
  return Items(std::move(made));
}

std::optional<Int> length(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return Int{0};
    case Kind::string: return static_cast<Int>(value.string().length);
    case Kind::dict: return static_cast<Int>(value.dict().items.size());
    case Kind::loop: return static_cast<Int>(value.loop().items->size());
    case Kind::sequence:
      if (value.is_sequence(Flavour::iterator)) return {};
      return static_cast<Int>(value.sequence().items.size());
    default: return {};
  }
}

Value get_attribute(Runtime& runtime, const Value& object, const Value& name) {
  runtime.step(2);
  Value found = attribute(runtime, object, name.text());
  if (found.is_missing()) found = subscript(runtime, object, name);
  return found.is_missing() ? runtime.undefined_member(object, name) : found;
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  runtime.step(2);
  Value found = subscript(runtime, object, key);
  if (found.is_missing() && key.is_string()) found = attribute(runtime, object, key.text());
  return found.is_missing() ? runtime.undefined_member(object, key) : found;
}

Value get_path(Runtime& runtime, const Value& object, const Value& path) {
  if (!path.is_string()) return path.is_none() ? object : get_item(runtime, object, path);
  Value found = object;
  const std::string& text = path.text();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits =
        !part.empty() && part.size() < 18 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    found = get_item(runtime, found, digits ? Value(Int{std::stoll(part)}) : runtime.text(part));
    begin = end + 1;
  }
  return found;
}

namespace {

struct Cut {
  Int start, stop, step, count;
};

// PySlice_AdjustIndices.
Cut cut_of(Runtime& runtime, const Value& start, const Value& stop, const Value& step, Int size) {
  for (const Value* part : {&start, &stop, &step})
    if (!part->is_none() && !part->is_integer())
      runtime.fail("slice indices must be integers or None or have an __index__ method");
  const Int by = step.is_none() ? 1 : step.integer();
  if (by == 0) runtime.fail("slice step cannot be zero");
  const Int low = by < 0 ? -1 : 0, high = by < 0 ? size - 1 : size;
  const auto adjusted = [&](const Value& part, Int fallback) {
    if (part.is_none()) return fallback;
    const Int place = part.integer() < 0 ? part.integer() + size : part.integer();
    return std::clamp(place, low, high);
  };
  const Int from = adjusted(start, by < 0 ? high : low), to = adjusted(stop, by < 0 ? low : high);
  const Int distance = by > 0 ? to - from : from - to, stride = by > 0 ? by : -by;
  return {from, to, by, distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

template <class Row>
Row picked(const Row& from, const Cut& cut) {
  Row out;
  out.reserve(static_cast<size_t>(cut.count));
  for (Int i = 0; i < cut.count; ++i) out.push_back(from[static_cast<size_t>(cut.start + i * cut.step)]);
  return out;
}

std::string cut_text(Runtime& runtime, const String& string, const Cut& cut) {
  const std::string& text = string.text;
  if (cut.step == 1) {
    const auto end = static_cast<size_t>(cut.start + cut.count);
    const size_t first = byte_of_character(runtime, string, static_cast<size_t>(cut.start));
    const size_t behind = byte_of_character(runtime, string, end);
    return text.substr(first, behind - first);
  }
  if (!string.ascii()) return to_utf8(picked(runtime.codes(text), cut));
  runtime.charge(static_cast<size_t>(cut.count));
  runtime.pass_slowly(static_cast<size_t>(cut.count));
  return picked(text, cut);
}

}  // namespace

Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
  runtime.need_defined(object);
  if (object.is_string()) {
    const String& string = object.string();
    const Cut cut = cut_of(runtime, start, stop, step, static_cast<Int>(string.length));
    return runtime.text(cut_text(runtime, string, cut), string.markup);
  }
  if (!object.is(Kind::sequence) || !is_subscriptable(object.sequence().flavour))
    runtime.fail(object.is(Kind::dict) ? "unhashable type: 'slice'"
                                       : "'" + std::string(type_name(object)) + "' object is not subscriptable");
  const Sequence& row = object.sequence();
  const Cut cut = cut_of(runtime, start, stop, step, static_cast<Int>(row.items.size()));
  if (row.flavour == Flavour::range)
    return range_of(runtime, row.start + cut.start * row.step, row.start + cut.stop * row.step, row.step * cut.step);
  runtime.charge(static_cast<size_t>(cut.count) * sizeof(Value));
  return runtime.row(picked(row.items, cut), row.flavour);
}

Value range_of(Runtime& runtime, Int start, Int stop, Int step) {
  constexpr Int kMax = 100'000;
  if (step == 0) runtime.fail("range() arg 3 must not be zero");
  const Int distance = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Int count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (count > kMax)
    runtime.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" + text_of(kMax) + ").");
  runtime.charge(static_cast<size_t>(count) * sizeof(Value));
  runtime.step(static_cast<int64_t>(count) / 4);
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) items.emplace_back(start + i * step);
  Value made = runtime.row(std::move(items), Flavour::range);
  made.sequence().start = start;
  made.sequence().stop = stop;
  made.sequence().step = step;
  return made;
}

}  // namespace lockstep::text::jinja
