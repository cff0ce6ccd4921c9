// Filters of lists and dicts.
#include <algorithm>

#include "text/jinja/functions.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

Value iterator(Runtime& runtime, Values items, std::string_view name = "generator") {
  Value made = runtime.row(std::move(items), Flavour::iterator);
  made.sequence().name = name;
  return made;
}

Value count(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "length", arguments, {});
  const auto size = length(value);
  if (!size) runtime.fail("object of type '" + std::string(type_name(value)) + "' has no len()");
  return Value(*size);
}

Value fallback(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "default", arguments, {"default_value", "boolean"});
  const bool replaced = value.is_undefined() || (truth(given[1]) && !truth(value));
  if (!replaced) return value;
  return given[0].is_missing() ? runtime.text("") : given[0];
}

Value first(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "first", arguments, {});
  if (value.is_sequence(Flavour::iterator)) {
    Sequence& row = value.sequence();
    if (row.next < row.items.size()) return row.items[row.next++];
    return runtime.undefined("No first item, sequence was empty.");
  }
  const auto items = iterate(runtime, value);
  return items.size() == 0 ? runtime.undefined("No first item, sequence was empty.") : items[0];
}

Value last(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "last", arguments, {});
  const bool reversible = value.is_undefined() || value.is_string() || value.is(Kind::dict) ||
                          (value.is(Kind::sequence) && !value.is_sequence(Flavour::iterator));
  if (!reversible) runtime.fail("'" + std::string(type_name(value)) + "' object is not reversible");
  const auto items = iterate(runtime, value);
  return items.size() == 0 ? runtime.undefined("No last item, sequence was empty.") : items[items.size() - 1];
}

Value to_list(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "list", arguments, {});
  const auto items = iterate(runtime, value);
  runtime.charge(items.size() * sizeof(Value));
  return runtime.row(Values(items.begin(), items.end()));
}

Value items_of(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "items", arguments, {});
  if (value.is_undefined()) return iterator(runtime, {});
  if (!value.is(Kind::dict)) runtime.fail("Can only get item pairs from a mapping.");
  Values pairs;
  runtime.charge(value.dict().items.size() * sizeof(Value));
  for (const auto& [key, item] : value.dict().items) pairs.push_back(runtime.row({key, item}, Flavour::tuple));
  return iterator(runtime, std::move(pairs));
}

Value reversed(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "reverse", arguments, {});
  if (value.is_string()) {
    std::u32string codes = runtime.codes(value.text());
    std::ranges::reverse(codes);
    return runtime.text(to_utf8(codes), value.string().markup);
  }
  if (!is_iterable(value)) runtime.fail("argument must be iterable");
  const auto items = iterate(runtime, value);
  runtime.charge(items.size() * sizeof(Value));
  Values backwards(items.begin(), items.end());
  std::ranges::reverse(backwards);
  // reversed() gives an iterator; what it cannot turn around becomes a list.
  const bool listed = value.is_sequence(Flavour::iterator);
  return listed ? runtime.row(std::move(backwards)) : iterator(runtime, std::move(backwards), "list_reverseiterator");
}

Value join(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "join", arguments, {"d", "attribute"});
  const std::string separator = given[0].is_missing() ? "" : str(runtime, given[0]);
  const bool by_attribute = !given[1].is_missing() && !given[1].is_none();
  std::string out;
  bool behind = false;
  for (const Value& item : iterate(runtime, value)) {
    runtime.step();
    if (behind) {
      runtime.charge(separator.size());
      out += separator;
    }
    append_str(runtime, out, by_attribute ? get_path(runtime, item, given[1]) : item);
    behind = true;
  }
  return runtime.text(std::move(out));
}

Value take(Arguments& arguments, std::string_view name) {
  const auto found = std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
  if (found == arguments.named.end()) return {};
  Value value = found->second;
  arguments.named.erase(found);
  return value;
}

Value map_attribute(Runtime& runtime, const Values& items, Arguments& arguments) {
  const Value path = take(arguments, "attribute"), instead = take(arguments, "default");
  if (!arguments.named.empty()) runtime.fail("Unexpected keyword argument " + repr(arguments.named[0].first));
  Values mapped;
  for (const Value& item : items) {
    const Value found = get_path(runtime, item, path);
    mapped.push_back(found.is_undefined() && !instead.is_missing() && !instead.is_none() ? instead : found);
  }
  return iterator(runtime, std::move(mapped));
}

Value map(Runtime& runtime, const Value& value, Arguments& arguments) {
  if (!truth(value)) return iterator(runtime, {});
  const auto items = iterate(runtime, value);
  runtime.charge(items.size() * sizeof(Value));
  const bool by_attribute = std::ranges::count(arguments.named, "attribute", &std::pair<std::string, Value>::first) > 0;
  if (arguments.positional.empty() && by_attribute) return map_attribute(runtime, *items.held(), arguments);
  if (arguments.positional.empty()) runtime.fail("map requires a filter argument");
  const std::string name = need_text(runtime, arguments.positional[0]);
  arguments.positional.erase(arguments.positional.begin());
  Values mapped;
  for (const Value& item : items) {
    runtime.step(static_cast<int64_t>(1 + arguments.positional.size() + arguments.named.size() * 4));  // copied
    mapped.push_back(call_filter(runtime, name, item, arguments));
  }
  return iterator(runtime, std::move(mapped));
}

// select, reject, selectattr, rejectattr.
template <bool keep, bool by_attribute>
Value chosen(Runtime& runtime, const Value& value, Arguments& arguments) {
  if (!truth(value)) return iterator(runtime, {});
  Value path;
  if (by_attribute) {
    if (arguments.positional.empty()) runtime.fail("Missing parameter for attribute name");
    path = arguments.positional[0];
    arguments.positional.erase(arguments.positional.begin());
  }
  std::string test;
  const bool tested = !arguments.positional.empty();
  if (tested) {
    test = need_text(runtime, arguments.positional[0]);
    arguments.positional.erase(arguments.positional.begin());
  }
  Values kept;
  for (const Value& item : iterate(runtime, value)) {
    runtime.step(static_cast<int64_t>(1 + arguments.positional.size() + arguments.named.size() * 4));  // copied
    runtime.charge(sizeof(Value));
    const Value looked_at = by_attribute ? get_path(runtime, item, path) : item;
    const bool passed = tested ? call_test(runtime, test, looked_at, arguments) : truth(looked_at);
    if (passed == keep) kept.push_back(item);
  }
  return iterator(runtime, std::move(kept));
}

Value batch(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "batch", arguments, {"linecount", "fill_with"}, 1);
  Values rows, row;
  const auto items = iterate(runtime, value);
  const Value& size = given[0];
  const auto flush = [&] {
    rows.push_back(runtime.row(std::move(row)));
    row.clear();
  };
  for (const Value& item : items) {
    if (equal(runtime, Value(static_cast<Int>(row.size())), size)) flush();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!given[1].is_missing() && !given[1].is_none()) {
      const int64_t wanted = need_count(runtime, size, int64_t{1} << 40);
      const size_t missing = static_cast<size_t>(std::max<int64_t>(wanted - static_cast<int64_t>(row.size()), 0));
      runtime.charge(missing * sizeof(Value));
      row.insert(row.end(), missing, given[1]);
    }
    flush();
  }
  return iterator(runtime, std::move(rows));
}

Value slice(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "slice", arguments, {"slices", "fill_with"}, 1);
  const auto items = iterate(runtime, value);
  const int64_t slices = need_count(runtime, given[0], int64_t{1} << 40), size = static_cast<int64_t>(items.size());
  if (slices == 0) runtime.fail("integer division or modulo by zero");
  if (slices < 0) return iterator(runtime, {});
  runtime.charge(static_cast<size_t>(slices) * sizeof(Value));
  runtime.step(slices);
  const int64_t each = size / slices, longer = size % slices;
  Values rows;
  int64_t begin = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t end = begin + each + (i < longer ? 1 : 0);
    Values row(items.begin() + begin, items.begin() + end);
    if (!given[1].is_missing() && !given[1].is_none() && i >= longer) row.push_back(given[1]);
    rows.push_back(runtime.row(std::move(row)));
    begin = end;
  }
  return iterator(runtime, std::move(rows));
}

Value attr(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "attr", arguments, {"name"}, 1);
  need_text(runtime, given[0]);
  if (value.is(Kind::dict)) runtime.step(static_cast<int64_t>(value.dict().items.size() / 4));
  if (value.is(Kind::dict) && find_key(value.dict(), given[0].text()) != nullptr) {
    const Value method = find_method(runtime, value, given[0].text());
    return method.is_missing() ? runtime.undefined_member(value, given[0]) : method;
  }
  return get_attribute(runtime, value, given[0]);
}

constexpr FilterRow kListFilters[] = {{"length", count},
                                      {"count", count},
                                      {"default", fallback},
                                      {"d", fallback},
                                      {"first", first},
                                      {"last", last},
                                      {"list", to_list},
                                      {"items", items_of},
                                      {"reverse", reversed},
                                      {"join", join},
                                      {"map", map},
                                      {"select", chosen<true, false>},
                                      {"reject", chosen<false, false>},
                                      {"selectattr", chosen<true, true>},
                                      {"rejectattr", chosen<false, true>},
                                      {"batch", batch},
                                      {"slice", slice},
                                      {"attr", attr}};

}  // namespace

std::span<const FilterRow> list_filters() {
  return kListFilters;
}

}  // namespace lockstep::text::jinja
