#include "text/jinja/operators.h"

#include <algorithm>

#include "text/jinja/loop.h"

namespace lockstep::text::jinja {

using Kind = Value::Kind;

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return value.boolean();
    case Kind::integer: return value.integer() != 0;
    case Kind::real: return value.real() != 0;
    case Kind::string: return !value.text().empty();
    case Kind::sequence: return value.is_sequence(Flavour::iterator) || !value.sequence().items.empty();
    case Kind::dict: return !value.dict().items.empty();
    default: return true;
  }
}

namespace {

void append_items(Runtime& runtime, std::string& out, const Values& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(runtime, out, items[i]);
  }
}

void append_pairs(Runtime& runtime, std::string& out, const Pairs& pairs) {
  out += '{';
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(runtime, out, pairs[i].first);
    out += ": ";
    append_repr(runtime, out, pairs[i].second);
  }
  out += '}';
}

void append_sequence(Runtime& runtime, std::string& out, const Value& value) {
  const Sequence& row = value.sequence();
  switch (row.flavour) {
    case Flavour::list:
      out += '[';
      append_items(runtime, out, row.items);
      out += ']';
      return;
    case Flavour::tuple:
      out += '(';
      append_items(runtime, out, row.items);
      out += row.items.size() == 1 ? ",)" : ")";
      return;
    case Flavour::range:
      out += "range(" + text_of(row.start) + ", " + text_of(row.stop);
      out += row.step == 1 ? ")" : ", " + text_of(row.step) + ")";
      return;
    case Flavour::iterator:
      runtime.unsupported("printing a " + std::string(row.name) + ": put `list` or `join` behind the filter");
    default:
      out += std::string(type_name(value)) + "([";
      append_items(runtime, out, row.items);
      out += "])";
  }
}

// Namespaces can hold themselves; Python writes dots the second time.
template <class Append>
void append_once(Runtime& runtime, std::string& out, const void* what, std::string_view dots, const Append& append) {
  runtime.step(static_cast<int64_t>(runtime.printing.size() / 8));
  if (std::ranges::count(runtime.printing, what) > 0) {
    out += dots;
    return;
  }
  runtime.printing.push_back(what);
  append();
  runtime.printing.pop_back();
}

void append_object(Runtime& runtime, std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::space:
      out += "<Namespace ";
      append_once(runtime, out, &value.space(), "{...}", [&] { append_pairs(runtime, out, value.space().items); });
      out += '>';
      return;
    case Kind::macro:
      runtime.charge_codes(value.macro().source->text);
      out +=
          value.macro().source->text.empty() ? "<Macro anonymous>" : "<Macro " + repr(value.macro().source->text) + ">";
      return;
    case Kind::loop:
      out += "<LoopContext " + std::to_string(value.loop().index0 + 1) + "/" +
             std::to_string(value.loop().items->size()) + ">";
      return;
    default: runtime.unsupported("printing a " + std::string(type_name(value)));
  }
}

}  // namespace

void append_repr(Runtime& runtime, std::string& out, const Value& value) {
  const Runtime::Level level(runtime);
  runtime.step();
  constexpr size_t kAbout = 8;
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: out += "Undefined"; return;
    case Kind::string:
      runtime.charge(value.text().size() + kAbout);
      runtime.charge_codes(value.text());
      if (!value.string().ascii()) runtime.pass_slowly(4 * value.text().size());  // is each printable?
      out += value.string().markup ? "Markup(" + repr(value.text()) + ")" : repr(value.text());
      return;
    case Kind::sequence: {
      const std::string_view dots = value.is_sequence(Flavour::tuple) ? "(...)" : "[...]";
      return append_once(runtime, out, &value.sequence(), dots, [&] { append_sequence(runtime, out, value); });
    }
    case Kind::dict:
      return append_once(runtime, out, &value.dict(), "{...}", [&] { append_pairs(runtime, out, value.dict().items); });
    case Kind::none: out += "None"; break;
    case Kind::boolean: out += value.boolean() ? "True" : "False"; break;
    case Kind::integer:
      runtime.step(value.integer() >> 64 == 0 ? 2 : 40);  // a division of 128 bits for each digit
      out += text_of(value.integer());
      break;
    case Kind::real:
      runtime.step(8);
      out += repr(value.real());
      break;
    default: return append_object(runtime, out, value);
  }
  runtime.charge(kAbout);
}

void append_str(Runtime& runtime, std::string& out, const Value& value) {
  if (value.is_string()) {
    runtime.charge(value.text().size());
    out += value.text();
  } else if (!value.is_undefined() && !value.is_missing()) {
    append_repr(runtime, out, value);
  }
}

std::string str(Runtime& runtime, const Value& value) {
  std::string out;
  append_str(runtime, out, value);
  return out;
}

std::string repr(Runtime& runtime, const Value& value) {
  std::string out;
  append_repr(runtime, out, value);
  return out;
}

std::string escaped(Runtime& runtime, const Value& value) {
  std::string plain = str(runtime, value);
  if (value.is_string() && value.string().markup) return plain;
  std::string out;
  runtime.charge(plain.size() * 2);
  runtime.pass_slowly(plain.size());
  for (const char c : plain) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  return out;
}

namespace {

bool equal_texts(Runtime& runtime, const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  runtime.pass(a.size());
  return a == b;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (!a.is(Kind::real) && !b.is(Kind::real)) return a.integer() == b.integer();
  return static_cast<long double>(a.is(Kind::real) ? a.real() : static_cast<long double>(a.integer())) ==
         static_cast<long double>(b.is(Kind::real) ? b.real() : static_cast<long double>(b.integer()));
}

bool equal_items(Runtime& runtime, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].same(b[i]) && !equal(runtime, a[i], b[i])) return false;
  return true;
}

bool equal_pairs(Runtime& runtime, const Pairs& a, const Pairs& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a) {
    const Value* other = look_up(runtime, b, key);
    if (other == nullptr || (!value.same(*other) && !equal(runtime, value, *other))) return false;
  }
  return true;
}

}  // namespace

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  const Runtime::Level level(runtime);
  runtime.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string: return equal_texts(runtime, a.text(), b.text());
    case Kind::undefined: return true;
    case Kind::dict: return equal_pairs(runtime, a.dict().items, b.dict().items);
    case Kind::sequence: {
      const Flavour flavour = a.sequence().flavour;
      if (flavour == Flavour::iterator || flavour == Flavour::values) return a.same(b);
      return flavour == b.sequence().flavour && equal_items(runtime, a.sequence().items, b.sequence().items);
    }
    case Kind::callable:
      return a.callable().name == b.callable().name && equal(runtime, a.callable().self, b.callable().self);
    case Kind::missing: return true;
    default: return a.same(b);
  }
}

bool ordered(Runtime& runtime, const Value& a, const Value& b, std::string_view symbol) {
  const Runtime::Level level(runtime);
  runtime.step();
  const auto apply = [&](const auto& x, const auto& y) {
    return symbol == "<" ? x < y : symbol == "<=" ? x <= y : symbol == ">" ? x > y : x >= y;
  };
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::real) && !b.is(Kind::real)) return apply(a.integer(), b.integer());
    const auto wide = [](const Value& v) {
      return v.is(Kind::real) ? static_cast<long double>(v.real()) : static_cast<long double>(v.integer());
    };
    return apply(wide(a), wide(b));
  }
  if (a.is_string() && b.is_string()) {
    runtime.pass(std::min(a.text().size(), b.text().size()));
    return apply(a.text(), b.text());
  }
  for (const Flavour flavour : {Flavour::list, Flavour::tuple}) {
    if (!a.is_sequence(flavour) || !b.is_sequence(flavour)) continue;
    const Values &x = a.sequence().items, &y = b.sequence().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!x[i].same(y[i]) && !equal(runtime, x[i], y[i])) return ordered(runtime, x[i], y[i], symbol);
    return apply(x.size(), y.size());
  }
  runtime.need_defined(a);
  runtime.need_defined(b);
  runtime.fail("'" + std::string(symbol) + "' not supported between instances of '" + std::string(type_name(a)) +
               "' and '" + std::string(type_name(b)) + "'");
}

namespace {

// A search prepares four bytes for each of its part, one after the other: as much as its characters are.
TextSearch prepared(Runtime& runtime, std::string_view part, bool from_right) {
  runtime.charge_codes(part);
  return TextSearch(part, from_right ? TextSearch::From::right : TextSearch::From::left);
}

}  // namespace

Finder::Finder(Runtime& runtime, std::string_view part, bool from_right)
    : runtime_(runtime), search_(prepared(runtime, part, from_right)) {}

size_t Finder::find(std::string_view text) const {
  runtime_.step();
  return search_.find(text, [&](size_t compared) { runtime_.pass_slowly(compared); });
}

size_t find_text(Runtime& runtime, std::string_view text, std::string_view part, bool from_right) {
  if (part.size() > text.size()) return std::string_view::npos;
  if (part.empty()) return from_right ? text.size() : 0;
  return Finder(runtime, part, from_right).find(text);
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string())
      runtime.fail("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
    return find_text(runtime, container.text(), item.text()) != std::string_view::npos;
  }
  if (container.is(Kind::dict) || container.is_sequence(Flavour::keys)) {
    if (!is_hashable(runtime, item)) runtime.fail("unhashable type: '" + std::string(type_name(item)) + "'");
    if (container.is(Kind::dict)) return look_up(runtime, container.dict().items, item) != nullptr;
  }
  if (!is_iterable(container))
    runtime.fail("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  const auto items = iterate(runtime, container);
  return std::ranges::any_of(items,
                             [&](const Value& other) { return other.same(item) || equal(runtime, other, item); });
}

bool is_hashable(Runtime& runtime, const Value& value) {
  if (value.is(Kind::dict)) return false;
  if (!value.is(Kind::sequence)) return true;
  const Sequence& row = value.sequence();
  if (row.flavour == Flavour::tuple)
    return std::ranges::all_of(row.items, [&](const Value& item) {
      runtime.step();
      return is_hashable(runtime, item);
    });
  return row.flavour == Flavour::range || row.flavour == Flavour::iterator || row.flavour == Flavour::values;
}

const Value* look_up(Runtime& runtime, const Pairs& items, const Value& key) {
  runtime.step(static_cast<int64_t>(1 + items.size() / 4));
  if (key.is_string()) {
    for (const auto& [other, value] : items)
      if (other.is_string() && equal_texts(runtime, other.text(), key.text())) return &value;
    return nullptr;
  }
  for (const auto& [other, value] : items)
    if (other.same(key) || equal(runtime, other, key)) return &value;
  return nullptr;
}

void store(Runtime& runtime, Pairs& items, const Value& key, Value value) {
  if (!is_hashable(runtime, key)) runtime.fail("unhashable type: '" + std::string(type_name(key)) + "'");
  if (const Value* found = look_up(runtime, items, key))
    const_cast<Value&>(*found) = std::move(value);
  else
    items.emplace_back(key, std::move(value));
}

}  // namespace lockstep::text::jinja
