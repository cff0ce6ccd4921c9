// Methods of str; how texts are cut is in string_split.cpp.
#include <algorithm>

#include "core/utf8.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

std::string method_name(std::string_view name) {
  return "str." + std::string(name);
}

Value made(Runtime& runtime, std::string text, const Value& like) {
  return runtime.text(std::move(text), like.string().markup);
}

template <std::string (*convert)(std::string_view)>
Value converted(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "str", arguments, {});
  runtime.charge(self.text().size());
  runtime.charge_codes(self.text());
  if (!self.string().ascii()) runtime.pass_slowly(8 * self.text().size());  // tables are searched for each character
  return made(runtime, convert(self.text()), self);
}

template <bool left, bool right>
Value stripped(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "strip", arguments, {"chars"});
  const bool spaces = given[0].is_missing() || given[0].is_none();
  if (!spaces) {
    runtime.charge_codes(need_text(runtime, given[0]));
    runtime.pass_slowly(8 * given[0].text().size());  // sorted
  }
  const auto characters = spaces ? std::nullopt : std::optional(need_text(runtime, given[0]));
  const std::string_view rest = strip(self.text(), characters, left, right, [&](size_t bytes) {
    runtime.pass_slowly(bytes * (spaces ? 2 : 8));  // each character is searched
  });
  return made(runtime, std::string(rest), self);
}

// Byte offsets of [start, end) given in characters.
struct Window {
  size_t begin, end;
  bool empty;  // start beyond the end: not even an empty text is found there
};

Window window_of(Runtime& runtime, const String& string, const Value& start, const Value& stop) {
  const Int size = static_cast<Int>(string.length);
  const auto place = [&](const Value& value, Int fallback) {
    if (value.is_missing() || value.is_none()) return fallback;
    const Int at = need_integer(runtime, value);
    return std::max<Int>(at < 0 ? at + size : at, 0);
  };
  const Int first = place(start, 0), last = std::min(place(stop, size), size);
  const auto bytes = [&](Int characters) {
    return byte_of_character(runtime, string, static_cast<size_t>(characters));
  };
  if (first > last || first > size) return {0, 0, true};
  return {bytes(first), bytes(last), false};
}

template <bool front>
Value has_affix(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "affix", arguments, {"prefix", "start", "end"}, 1);
  const Window window = window_of(runtime, self.string(), given[1], given[2]);
  const std::string_view text = std::string_view(self.text()).substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Value& affix) {
    const std::string& part = need_text(runtime, affix);
    runtime.step();
    runtime.pass(std::min(part.size(), text.size()));
    return !window.empty && (front ? text.starts_with(part) : text.ends_with(part));
  };
  if (!given[0].is_sequence(Flavour::tuple)) return Value(matches(given[0]));
  return Value(std::ranges::any_of(given[0].sequence().items, matches));
}

template <bool from_right>
Int found_at(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "find", arguments, {"sub", "start", "end"}, 1);
  const std::string& part = need_text(runtime, given[0]);
  const Window window = window_of(runtime, self.string(), given[1], given[2]);
  if (window.empty) return -1;
  const std::string_view text = std::string_view(self.text()).substr(window.begin, window.end - window.begin);
  const size_t place = find_text(runtime, text, part, from_right);
  if (place == std::string_view::npos) return -1;
  runtime.pass(window.begin + place);
  return static_cast<Int>(count_characters(std::string_view(self.text()).substr(0, window.begin + place)));
}

template <bool from_right>
Value find(Runtime& runtime, const Value& self, Arguments& arguments) {
  return Value(found_at<from_right>(runtime, self, arguments));
}

template <bool from_right>
Value index(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Int place = found_at<from_right>(runtime, self, arguments);
  if (place < 0) runtime.fail("substring not found");
  return Value(place);
}

Value count_parts(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "count", arguments, {"sub", "start", "end"}, 1);
  const std::string& part = need_text(runtime, given[0]);
  const Window window = window_of(runtime, self.string(), given[1], given[2]);
  if (window.empty) return Value(Int{0});
  std::string_view text = std::string_view(self.text()).substr(window.begin, window.end - window.begin);
  runtime.pass(text.size());
  if (part.empty()) return Value(static_cast<Int>(count_characters(text)) + 1);
  const Finder finder(runtime, part);
  Int found = 0;
  for (size_t at = finder.find(text); at != std::string_view::npos; at = finder.find(text)) {
    text.remove_prefix(at + part.size());
    ++found;
  }
  return Value(found);
}

Value replace(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  const std::string &from = need_text(runtime, given[0]), &to = need_text(runtime, given[1]);
  Int left = given[2].is_missing() ? -1 : need_integer(runtime, given[2]);
  if (self.string().markup) runtime.unsupported("`replace` of a text that is marked safe");
  std::string_view rest = self.text();
  std::string out;
  const auto put = [&](std::string_view text) {
    runtime.charge(text.size());
    out += text;
  };
  std::optional<Finder> finder;
  if (!from.empty()) finder.emplace(runtime, from);
  for (bool first = true; left != 0; --left, first = false) {
    if (from.empty()) {  // between all characters
      runtime.step();
      if (!first && rest.empty()) break;
      if (!first) {
        const size_t size = read_utf8(rest).size;
        put(rest.substr(0, size));
        rest.remove_prefix(size);
      }
      put(to);
      continue;
    }
    const size_t place = finder->find(rest);
    if (place == std::string_view::npos) break;
    put(rest.substr(0, place));
    put(to);
    rest.remove_prefix(place + from.size());
  }
  put(rest);
  return runtime.text(std::move(out));
}

Value pieces_of(Runtime& runtime, const std::vector<std::string_view>& pieces, const Value& like) {
  Values items;
  for (const std::string_view piece : pieces) items.push_back(made(runtime, std::string(piece), like));
  return runtime.row(std::move(items));
}

template <bool from_right>
Value split(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "split", arguments, {"sep", "maxsplit"});
  const Int most = given[1].is_missing() ? -1 : need_integer(runtime, given[1]);
  const std::string& text = self.text();
  runtime.charge(text.size() * 2);
  if (given[0].is_missing() || given[0].is_none()) {
    if (from_right && most < 0) return pieces_of(runtime, split_spaces(runtime, text, -1, false), self);
    return pieces_of(runtime, split_spaces(runtime, text, most, from_right), self);
  }
  const std::string& separator = need_text(runtime, given[0]);
  if (separator.empty()) runtime.fail("empty separator");
  return pieces_of(runtime, split_at(runtime, text, separator, most, from_right), self);
}

Value splitlines(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "splitlines", arguments, {"keepends"});
  Values items;
  for (std::string& line : split_lines(runtime, self.text(), truth(given[0])))
    items.push_back(made(runtime, std::move(line), self));
  return runtime.row(std::move(items));
}

template <bool from_right>
Value partition(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "partition", arguments, {"sep"}, 1);
  const std::string& separator = need_text(runtime, given[0]);
  if (separator.empty()) runtime.fail("empty separator");
  const std::string& text = self.text();
  const size_t place = find_text(runtime, text, separator, from_right);
  runtime.charge(2 * text.size() + separator.size());
  std::string parts[3] = {text, "", ""};
  if (place == std::string::npos) {
    if (from_right) std::swap(parts[0], parts[2]);
  } else {
    parts[0] = text.substr(0, place);
    parts[1] = separator;
    parts[2] = text.substr(place + separator.size());
  }
  return runtime.row({made(runtime, parts[0], self), made(runtime, parts[1], self), made(runtime, parts[2], self)},
                     Flavour::tuple);
}

template <bool prefix>
Value without_affix(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "removeprefix", arguments, {"affix"}, 1);
  const std::string &affix = need_text(runtime, given[0]), &text = self.text();
  runtime.charge(text.size() + std::min(affix.size(), text.size()));
  if (affix.empty() || !(prefix ? text.starts_with(affix) : text.ends_with(affix))) return self;
  return made(runtime, prefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()), self);
}

Value join_texts(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "join", arguments, {"iterable"}, 1);
  if (self.string().markup) runtime.unsupported("`join` of a text that is marked safe");
  std::string out;
  Int place = 0;
  for (const Value& item : iterate(runtime, given[0])) {
    if (!item.is_string())
      runtime.fail("sequence item " + text_of(place) + ": expected str instance, " + std::string(type_name(item)) +
                   " found");
    runtime.charge(item.text().size() + self.text().size());
    runtime.step();
    if (place++ > 0) out += self.text();
    out += item.text();
  }
  return runtime.text(std::move(out));
}

template <char align>
Value justified(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "justify", arguments, {"width", "fillchar"}, 1);
  const std::string fill = given[1].is_missing() ? " " : need_text(runtime, given[1]);
  if (count_characters(fill) != 1) runtime.fail("The fill character must be exactly one character long");
  const Int width = need_integer(runtime, given[0]);
  if (align == '^') {
    // Python's center puts the odd space on the left only where both the width and the space are odd.
    const Int missing = width - static_cast<Int>(self.string().length);
    if (missing > 0) {
      const Int left = missing / 2 + (missing & width & 1);
      const std::string half = padded(runtime, self.text(), static_cast<Int>(self.string().length) + left, '>', fill);
      return made(runtime, padded(runtime, half, width, '<', fill), self);
    }
  }
  return made(runtime, padded(runtime, self.text(), width, align, fill), self);
}

Value zfill(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "zfill", arguments, {"width"}, 1);
  const Int width = need_integer(runtime, given[0]);
  const std::string& text = self.text();
  runtime.charge(2 * text.size());
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const std::string zeros = padded(runtime, text.substr(sign ? 1 : 0), width - (sign ? 1 : 0), '>', "0");
  return made(runtime, text.substr(0, sign ? 1 : 0) + zeros, self);
}

Value expandtabs(Runtime& runtime, const Value& self, Arguments& arguments) {
  const Values given = bound(runtime, "expandtabs", arguments, {"tabsize"});
  const int64_t size = given[0].is_missing() ? 8 : need_count(runtime, given[0], 1 << 20);
  std::string out;
  int64_t column = 0;
  for (const char32_t code : runtime.codes(self.text())) {
    if (code != '\t') {
      append_utf8(out, code);
      column = code == '\n' || code == '\r' ? 0 : column + 1;
    } else if (size > 0) {
      const int64_t spaces = size - column % size;
      runtime.charge(static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    }
  }
  return made(runtime, std::move(out), self);
}

// isalpha and so on: every character is of the class, and there is one.
template <bool (*member)(uint32_t)>
Value all_are(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "str", arguments, {});
  const std::u32string codes = runtime.codes(self.text());
  runtime.pass_slowly(codes.size() * 4);  // the class of each
  return Value(!codes.empty() && std::ranges::all_of(codes, member));
}

template <CharClass which>
bool in_class(uint32_t code) {
  return is(which, code);
}
bool is_alphanumeric(uint32_t code) {
  return is(CharClass::alpha, code) || is(CharClass::numeric, code) || is(CharClass::digit, code);
}

template <bool wants_upper>
Value is_case(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "str", arguments, {});
  return Value(call_test(runtime, wants_upper ? "upper" : "lower", self, {}));
}

Value istitle(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "istitle", arguments, {});
  bool inside = false, found = false;
  const std::u32string codes = runtime.codes(self.text());
  runtime.pass_slowly(codes.size() * 8);
  for (const char32_t code : codes) {
    const bool big = is(CharClass::upper, code) || is(CharClass::title, code), small = is(CharClass::lower, code);
    if ((big && inside) || (small && !inside)) return Value(false);
    inside = big || small;
    found = found || inside;
  }
  return Value(found);
}

Value isascii(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "isascii", arguments, {});
  return Value(self.string().ascii());
}

Value isprintable(Runtime& runtime, const Value& self, Arguments& arguments) {
  bound(runtime, "isprintable", arguments, {});
  const std::u32string codes = runtime.codes(self.text());
  runtime.pass_slowly(codes.size() * 4);
  return Value(std::ranges::all_of(codes, in_class<CharClass::printable>));
}

Value format(Runtime& runtime, const Value& self, Arguments& arguments) {
  if (self.string().markup) runtime.unsupported("`format` of a text that is marked safe");
  return runtime.text(brace_format(runtime, self.text(), arguments));
}

constexpr MethodRow kMethods[] = {{"upper", converted<upper>},
                                  {"lower", converted<lower>},
                                  {"title", converted<title>},
                                  {"capitalize", converted<capitalize>},
                                  {"swapcase", converted<swapcase>},
                                  {"strip", stripped<true, true>},
                                  {"lstrip", stripped<true, false>},
                                  {"rstrip", stripped<false, true>},
                                  {"startswith", has_affix<true>},
                                  {"endswith", has_affix<false>},
                                  {"find", find<false>},
                                  {"rfind", find<true>},
                                  {"index", index<false>},
                                  {"rindex", index<true>},
                                  {"count", count_parts},
                                  {"replace", replace},
                                  {"split", split<false>},
                                  {"rsplit", split<true>},
                                  {"splitlines", splitlines},
                                  {"partition", partition<false>},
                                  {"rpartition", partition<true>},
                                  {"removeprefix", without_affix<true>},
                                  {"removesuffix", without_affix<false>},
                                  {"join", join_texts},
                                  {"ljust", justified<'<'>},
                                  {"rjust", justified<'>'>},
                                  {"center", justified<'^'>},
                                  {"zfill", zfill},
                                  {"expandtabs", expandtabs},
                                  {"isalpha", all_are<in_class<CharClass::alpha>>},
                                  {"isdecimal", all_are<in_class<CharClass::decimal>>},
                                  {"isdigit", all_are<in_class<CharClass::digit>>},
                                  {"isnumeric", all_are<in_class<CharClass::numeric>>},
                                  {"isspace", all_are<is_space>},
                                  {"isalnum", all_are<is_alphanumeric>},
                                  {"islower", is_case<false>},
                                  {"isupper", is_case<true>},
                                  {"istitle", istitle},
                                  {"isascii", isascii},
                                  {"isprintable", isprintable},
                                  {"format", format},
                                  {"format_map", nullptr},
                                  {"casefold", nullptr},
                                  {"encode", nullptr},
                                  {"isidentifier", nullptr},
                                  {"maketrans", nullptr},
                                  {"translate", nullptr}};

}  // namespace

std::span<const MethodRow> string_methods() {
  return kMethods;
}

Value call_string_method(Runtime& runtime, std::string_view name, const Value& self, Arguments& arguments) {
  const auto found = std::ranges::find(kMethods, name, &MethodRow::name);
  if (found == std::end(kMethods)) runtime.unsupported(method_name(name));
  return found->call(runtime, self, arguments);
}

}  // namespace lockstep::text::jinja
