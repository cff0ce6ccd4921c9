#include "text/jinja/functions.h"

#include <algorithm>

#include "core/error.h"
#include "core/nearest_name.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

using Kind = Value::Kind;

Values bound(Runtime& runtime, std::string_view function, Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required) {
  const std::string called = std::string(function) + "()";
  if (arguments.positional.size() > names.size())
    runtime.fail(called + " takes at most " + std::to_string(names.size()) + " arguments (" +
                 std::to_string(arguments.positional.size()) + " given)");
  Values values = arguments.positional;
  values.resize(names.size());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) runtime.fail(called + " got an unexpected keyword argument " + repr(name));
    Value& place = values[static_cast<size_t>(found - names.begin())];
    if (!place.is_missing()) runtime.fail(called + " got multiple values for argument " + repr(name));
    place = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (values[i].is_missing()) runtime.fail(called + " misses the argument " + repr(*(names.begin() + i)));
  return values;
}

const std::string& need_text(Runtime& runtime, const Value& value) {
  runtime.need_defined(value);
  if (!value.is_string()) runtime.fail("a string is wanted, not " + std::string(type_name(value)));
  return value.text();
}

Int need_integer(Runtime& runtime, const Value& value) {
  runtime.need_defined(value);
  if (!value.is_integer())
    runtime.fail("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer");
  return value.integer();
}

int64_t need_count(Runtime& runtime, const Value& value, int64_t largest) {
  return static_cast<int64_t>(std::clamp<Int>(need_integer(runtime, value), -largest, largest));
}

namespace {

Value raise_exception(Runtime& runtime, const Value&, Arguments& arguments) {
  const Values given = bound(runtime, "raise_exception", arguments, {"message"}, 1);
  runtime.fail(str(runtime, given[0]));
}

Value strftime_now(Runtime& runtime, const Value&, Arguments& arguments) {
  const Values given = bound(runtime, "strftime_now", arguments, {"format"}, 1);
  const std::string& format = need_text(runtime, given[0]);
  if (format.find("%f") != std::string::npos) runtime.unsupported("%f in strftime_now");
  if (format.empty()) return runtime.text("");
  const std::tm now = runtime.now();
  constexpr size_t kMax = 4096;
  if (format.size() > kMax / 4) runtime.fail("the format of strftime_now is too long");
  runtime.step(static_cast<int64_t>(format.size() * 8));
  char buffer[kMax];
  // An empty result and a buffer that is too small look alike; formats are short, so it is the former.
  return runtime.text(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &now)));
}

Value range(Runtime& runtime, const Value&, Arguments& arguments) {
  const Values given = bound(runtime, "range", arguments, {"start", "stop", "step"}, 1);
  const Int first = need_integer(runtime, given[0]);
  if (given[1].is_missing()) return range_of(runtime, 0, first, 1);
  return range_of(runtime, first, need_integer(runtime, given[1]),
                  given[2].is_missing() ? 1 : need_integer(runtime, given[2]));
}

// dict(mapping or pairs, key=value ...).
Pairs pairs_of(Runtime& runtime, const char* function, Arguments& arguments) {
  Pairs items;
  if (arguments.positional.size() > 1)
    runtime.fail(std::string(function) + " expected at most 1 argument, got " +
                 std::to_string(arguments.positional.size()));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::dict)) {
      runtime.charge(from.dict().items.size() * 2 * sizeof(Value));
      items = from.dict().items;
    } else {
      for (const Value& item : iterate(runtime, from)) {
        const auto pair = iterate(runtime, item);
        if (pair.size() != 2) runtime.fail("dictionary update sequence element needs a length of 2");
        store(runtime, items, pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) store(runtime, items, runtime.text(name), value);
  return items;
}

Value make_dict(Runtime& runtime, const Value&, Arguments& arguments) {
  return runtime.dict(pairs_of(runtime, "dict", arguments));
}

Value make_namespace(Runtime& runtime, const Value&, Arguments& arguments) {
  runtime.charge(sizeof(Space) + arguments.named.size() * 2 * sizeof(Value));
  runtime.step(8);
  Pairs items = pairs_of(runtime, "namespace", arguments);
  for (const auto& [key, value] : items) need_text(runtime, key);
  runtime.spaces.push_back({.items = std::move(items)});
  return Value(&runtime.spaces.back());
}

Value make_cycler(Runtime& runtime, const Value&, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) runtime.fail("at least one item has to be provided");
  runtime.charge(sizeof(Turn) + arguments.positional.size() * sizeof(Value));
  runtime.turns.push_back({.items = arguments.positional});
  return Value(&runtime.turns.back());
}

Value make_joiner(Runtime& runtime, const Value&, Arguments& arguments) {
  const Values given = bound(runtime, "joiner", arguments, {"sep"});
  runtime.charge(sizeof(Turn));
  runtime.turns.push_back({.items = {given[0].is_missing() ? make_string(", ") : given[0]}, .joiner = true});
  return Value(&runtime.turns.back());
}

constexpr FilterRow kGlobals[] = {{"range", range},
                                  {"dict", make_dict},
                                  {"namespace", make_namespace},
                                  {"cycler", make_cycler},
                                  {"joiner", make_joiner},
                                  {"raise_exception", raise_exception},
                                  {"strftime_now", strftime_now}};

const FilterRow* find_filter(std::string_view name) {
  for (const auto rows : {text_filters(), list_filters(), order_filters()})
    if (const auto found = std::ranges::find(rows, name, &FilterRow::name); found != rows.end()) return &*found;
  return nullptr;
}

using Test = bool (*)(Runtime&, const Value&, const Values&);
struct TestRow {
  std::string_view name;
  size_t arguments;
  Test call;
};

bool divisible(Runtime& runtime, const Value& value, const Value& by, Int rest) {
  return equal(runtime, arithmetic(runtime, BinaryOperator::modulo, value, by), Value(rest));
}

template <CharClass Wanted, CharClass Other>
bool is_in_case(Runtime& runtime, const Value& value) {
  bool found = false;
  const std::u32string codes = runtime.codes(str(runtime, value));
  runtime.pass_slowly(codes.size() * 8);  // the classes of each
  for (const char32_t code : codes) {
    if (is(Other, code) || is(CharClass::title, code)) return false;
    found = found || is(Wanted, code);
  }
  return found;
}

bool test_named(Runtime& runtime, const Value& value, bool (*known)(std::string_view)) {
  if (!is_hashable(runtime, value)) runtime.fail("unhashable type: '" + std::string(type_name(value)) + "'");
  return value.is_string() && known(value.text());
}

template <char First, char Second = '\0'>
bool test_ordered(Runtime& runtime, const Value& value, const Values& with) {
  static constexpr char kSymbol[] = {First, Second, '\0'};
  return ordered(runtime, value, with[0], kSymbol);
}
bool test_equal(Runtime& runtime, const Value& value, const Values& with) {
  return equal(runtime, value, with[0]);
}
bool test_unequal(Runtime& runtime, const Value& value, const Values& with) {
  return !equal(runtime, value, with[0]);
}

bool is_sequence_like(const Value& value) {
  if (value.is(Kind::sequence)) {
    const Flavour flavour = value.sequence().flavour;
    return flavour == Flavour::list || flavour == Flavour::tuple || flavour == Flavour::range;
  }
  return value.is_string() || value.is(Kind::dict) || value.is_undefined();
}

bool is_callable(const Value& value) {
  return value.is(Kind::callable) || value.is(Kind::macro) || value.is(Kind::loop) || value.is_undefined() ||
         (value.is(Kind::turn) && value.turn().joiner);
}

constexpr TestRow kTests[] = {
    {"odd", 0, [](Runtime& r, const Value& v, const Values&) { return divisible(r, v, Value(Int{2}), 1); }},
    {"even", 0, [](Runtime& r, const Value& v, const Values&) { return divisible(r, v, Value(Int{2}), 0); }},
    {"divisibleby", 1, [](Runtime& r, const Value& v, const Values& with) { return divisible(r, v, with[0], 0); }},
    {"defined", 0, [](Runtime&, const Value& v, const Values&) { return !v.is_undefined(); }},
    {"undefined", 0, [](Runtime&, const Value& v, const Values&) { return v.is_undefined(); }},
    {"filter", 0, [](Runtime& r, const Value& v, const Values&) { return test_named(r, v, is_filter); }},
    {"test", 0, [](Runtime& r, const Value& v, const Values&) { return test_named(r, v, is_test); }},
    {"none", 0, [](Runtime&, const Value& v, const Values&) { return v.is_none(); }},
    {"boolean", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::boolean); }},
    {"true", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::boolean) && v.boolean(); }},
    {"false", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::boolean) && !v.boolean(); }},
    {"integer", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::integer); }},
    {"float", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::real); }},
    {"number", 0, [](Runtime&, const Value& v, const Values&) { return v.is_number(); }},
    {"string", 0, [](Runtime&, const Value& v, const Values&) { return v.is_string(); }},
    {"mapping", 0, [](Runtime&, const Value& v, const Values&) { return v.is(Kind::dict); }},
    {"lower", 0,
     [](Runtime& r, const Value& v, const Values&) { return is_in_case<CharClass::lower, CharClass::upper>(r, v); }},
    {"upper", 0,
     [](Runtime& r, const Value& v, const Values&) { return is_in_case<CharClass::upper, CharClass::lower>(r, v); }},
    {"sequence", 0, [](Runtime&, const Value& v, const Values&) { return is_sequence_like(v); }},
    {"iterable", 0, [](Runtime&, const Value& v, const Values&) { return is_iterable(v); }},
    {"callable", 0, [](Runtime&, const Value& v, const Values&) { return is_callable(v); }},
    {"sameas", 1, [](Runtime&, const Value& v, const Values& with) { return v.same(with[0]); }},
    {"escaped", 0, [](Runtime&, const Value& v, const Values&) { return v.is_string() && v.string().markup; }},
    {"in", 1, [](Runtime& r, const Value& v, const Values& with) { return contains(r, with[0], v); }},
    {"==", 1, test_equal},
    {"eq", 1, test_equal},
    {"equalto", 1, test_equal},
    {"!=", 1, test_unequal},
    {"ne", 1, test_unequal},
    {">", 1, test_ordered<'>'>},
    {"gt", 1, test_ordered<'>'>},
    {"greaterthan", 1, test_ordered<'>'>},
    {">=", 1, test_ordered<'>', '='>},
    {"ge", 1, test_ordered<'>', '='>},
    {"<", 1, test_ordered<'<'>},
    {"lt", 1, test_ordered<'<'>},
    {"lessthan", 1, test_ordered<'<'>},
    {"<=", 1, test_ordered<'<', '='>},
    {"le", 1, test_ordered<'<', '='>},
};

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name, &TestRow::name) != std::end(kTests);
}

void fail_unknown(const std::string& where, int line, const std::string& name, bool filter) {
  std::vector<std::string> names;
  for (const TestRow& row : kTests)
    if (!filter) names.emplace_back(row.name);
  for (const auto rows : {text_filters(), list_filters(), order_filters()})
    for (const FilterRow& row : rows)
      if (filter) names.emplace_back(row.name);
  throw FormatError(
      {.what = std::string("not supported in templates: the ") + (filter ? "filter" : "test") + " " + repr(name),
       .where = where + " line " + std::to_string(line),
       .attempt = "the nearest name that is known is " + nearest_name(name, names)});
}

Value call_filter(Runtime& runtime, const std::string& name, const Value& value, Arguments arguments) {
  runtime.step(2);
  const FilterRow* found = find_filter(name);
  if (found == nullptr) runtime.unsupported("the filter " + repr(name));
  return found->call(runtime, value, arguments);
}

bool call_test(Runtime& runtime, const std::string& name, const Value& value, Arguments arguments) {
  runtime.step(2);
  const auto found = std::ranges::find(kTests, name, &TestRow::name);
  if (found == std::end(kTests)) runtime.unsupported("the test " + repr(name));
  if (arguments.positional.size() + arguments.named.size() != found->arguments)
    runtime.fail("the test " + repr(name) + " takes " + std::to_string(found->arguments) + " arguments (" +
                 std::to_string(arguments.positional.size() + arguments.named.size()) + " given)");
  if (!arguments.named.empty()) arguments.positional.push_back(arguments.named[0].second);
  return found->call(runtime, value, arguments.positional);
}

Value global_function(std::string_view name) {
  const auto found = std::ranges::find(kGlobals, name, &FilterRow::name);
  if (found == std::end(kGlobals)) return {};
  return Value(std::shared_ptr<const Callable>(
      std::make_shared<Callable>(Callable{.name = found->name, .self = {}, .call = found->call})));
}

}  // namespace lockstep::text::jinja
