// Filters that compare: sort, dictsort, unique, groupby, min, max, sum.
#include <algorithm>

#include "text/jinja/functions.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

Value folded(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (!value.is_string() || case_sensitive) return value;
  runtime.charge_codes(value.text());
  return runtime.text(lower(value.text()));
}

Value key_of(Runtime& runtime, const Value& item, const Value& path, bool case_sensitive) {
  return folded(runtime, path.is_missing() ? item : get_path(runtime, item, path), case_sensitive);
}

struct Keyed {
  Value key, item;
};

void put(Runtime& runtime, std::vector<Keyed>& rows, Keyed row) {
  runtime.charge(2 * sizeof(Keyed));  // with the copy that sorting takes
  rows.push_back(std::move(row));
}

// Python's sort: stable, also backwards.
void sort_keyed(Runtime& runtime, std::vector<Keyed>& rows, bool reverse) {
  if (reverse) std::ranges::reverse(rows);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const Keyed& a, const Keyed& b) { return ordered(runtime, a.key, b.key, "<"); });
  if (reverse) std::ranges::reverse(rows);
}

Value items_in_order(Runtime& runtime, std::vector<Keyed> rows, bool reverse) {
  sort_keyed(runtime, rows, reverse);
  Values items;
  for (Keyed& row : rows) items.push_back(std::move(row.item));
  return runtime.row(std::move(items));
}

// "a.b,c": a list of keys.
Value several_keys(Runtime& runtime, const Value& item, const Value& paths, bool case_sensitive) {
  if (!paths.is_string())
    return runtime.row({key_of(runtime, item, paths.is_none() ? Value() : paths, case_sensitive)});
  Values keys;
  const std::string& text = paths.text();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    keys.push_back(key_of(runtime, item, runtime.text(text.substr(begin, end - begin)), case_sensitive));
    begin = end + 1;
  }
  return runtime.row(std::move(keys));
}

Value sort(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const Value paths = given[2].is_missing() ? Value::none() : given[2];
  std::vector<Keyed> rows;
  for (const Value& item : iterate(runtime, value))
    put(runtime, rows, {several_keys(runtime, item, paths, truth(given[1])), item});
  return items_in_order(runtime, std::move(rows), truth(given[0]));
}

Value dictsort(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = given[1].is_missing() ? "key" : need_text(runtime, given[1]);
  if (by != "key" && by != "value") runtime.fail("You can only sort by either \"key\" or \"value\"");
  runtime.need_defined(value);
  if (!value.is(Kind::dict)) runtime.fail("'" + std::string(type_name(value)) + "' object has no attribute 'items'");
  std::vector<Keyed> rows;
  for (const auto& [key, item] : value.dict().items)
    put(runtime, rows,
        {folded(runtime, by == "key" ? key : item, truth(given[0])), runtime.row({key, item}, Flavour::tuple)});
  return items_in_order(runtime, std::move(rows), truth(given[2]));
}

Value path_or_missing(const Value& path) {
  return path.is_none() ? Value() : path;
}

Value unique(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "unique", arguments, {"case_sensitive", "attribute"});
  Pairs seen;
  Values items;
  for (const Value& item : iterate(runtime, value)) {
    const Value key = key_of(runtime, item, path_or_missing(given[1]), truth(given[0]));
    if (!is_hashable(runtime, key)) runtime.fail("unhashable type: '" + std::string(type_name(key)) + "'");
    if (look_up(runtime, seen, key) != nullptr) continue;
    runtime.charge(2 * sizeof(Value));
    seen.emplace_back(key, Value::none());
    items.push_back(item);
  }
  return runtime.row(std::move(items), Flavour::iterator);
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const auto items = iterate(runtime, value);
  if (items.size() == 0) return runtime.undefined("No aggregated item, sequence was empty.");
  Keyed best;
  for (const Value& item : items) {
    const Value key = key_of(runtime, item, path_or_missing(given[1]), truth(given[0]));
    if (best.item.is_missing() || ordered(runtime, key, best.key, largest ? ">" : "<")) best = {key, item};
  }
  return best.item;
}

Value sum(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "sum", arguments, {"attribute", "start"});
  Value total = given[1].is_missing() ? Value(Int{0}) : given[1];
  if (total.is_string()) runtime.fail("sum() can't sum strings [use ''.join(seq) instead]");
  const Value path = path_or_missing(given[0]);
  for (const Value& item : iterate(runtime, value))
    total = arithmetic(runtime, BinaryOperator::add, total, path.is_missing() ? item : get_path(runtime, item, path));
  return total;
}

Value groupby(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = truth(given[2]);
  const auto attribute = [&](const Value& item) {
    const Value found = get_path(runtime, item, given[0]);
    const bool instead = found.is_undefined() && !given[1].is_missing() && !given[1].is_none();
    return instead ? given[1] : found;
  };
  std::vector<Keyed> rows;
  for (const Value& item : iterate(runtime, value))
    put(runtime, rows, {folded(runtime, attribute(item), case_sensitive), item});
  sort_keyed(runtime, rows, false);
  Values groups;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    Values members;
    while (end < rows.size() && equal(runtime, rows[end].key, rows[begin].key)) members.push_back(rows[end++].item);
    if (end == begin) members.push_back(rows[end++].item);  // a key that differs from itself
    groups.push_back(runtime.row({attribute(rows[begin].item), runtime.row(std::move(members))}, Flavour::tuple));
    begin = end;
  }
  return runtime.row(std::move(groups));
}

constexpr FilterRow kOrderFilters[] = {{"sort", sort},       {"dictsort", dictsort},  {"unique", unique},
                                       {"groupby", groupby}, {"min", extreme<false>}, {"max", extreme<true>},
                                       {"sum", sum}};

}  // namespace

std::span<const FilterRow> order_filters() {
  return kOrderFilters;
}

}  // namespace lockstep::text::jinja
