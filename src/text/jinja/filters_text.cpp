// Filters of strings and numbers.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/functions.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

// soft_str: a string as it is, anything else through str().
Value soft(Runtime& runtime, const Value& value) {
  return value.is_string() ? value : runtime.text(str(runtime, value));
}

// A filter that is a method of str: "x"|upper.
template <size_t Size>
struct Name {
  char text[Size];
  constexpr Name(const char (&from)[Size]) { std::copy_n(from, Size, text); }
};
template <Name method>
Value as_method(Runtime& runtime, const Value& value, Arguments& arguments) {
  return call_string_method(runtime, method.text, soft(runtime, value), arguments);
}

Value trim(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "trim", arguments, {"chars"});
  Arguments chars{.positional = given[0].is_missing() ? Values() : Values{given[0]}, .named = {}};
  return call_string_method(runtime, "strip", soft(runtime, value), chars);
}

Value replace(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  Arguments texts{.positional = {runtime.text(str(runtime, given[0])), runtime.text(str(runtime, given[1]))},
                  .named = {}};
  if (!given[2].is_missing() && !given[2].is_none()) texts.positional.push_back(given[2]);
  return call_string_method(runtime, "replace", runtime.text(str(runtime, value)), texts);
}

Value center(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "center", arguments, {"width"});
  Arguments width{.positional = {given[0].is_missing() ? Value(Int{80}) : given[0]}, .named = {}};
  return call_string_method(runtime, "center", soft(runtime, value), width);
}

// Every word with a capital; words begin behind spaces and - ( { [ <.
Value title_words(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "title", arguments, {});
  const Value text = soft(runtime, value);
  const std::u32string codes = runtime.codes(text.text());
  runtime.charge_codes(text.text());  // of each word
  std::string out;
  const auto separates = [](char32_t code) {
    return is_space(code) || std::u32string_view(U"-({[<").find(code) != std::u32string_view::npos;
  };
  for (size_t i = 0; i < codes.size();) {
    size_t end = i;
    while (end < codes.size() && separates(codes[end]) == separates(codes[i])) ++end;
    runtime.step(4);
    out += upper(to_utf8(std::u32string_view(codes).substr(i, 1)));
    out += lower(to_utf8(std::u32string_view(codes).substr(i + 1, end - i - 1)));
    i = end;
  }
  return runtime.text(std::move(out), text.string().markup);
}

Value indent(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "indent", arguments, {"width", "first", "blank"});
  std::string margin = "    ";
  if (given[0].is_string()) margin = given[0].text();
  if (!given[0].is_missing() && !given[0].is_string()) {
    const int64_t width = std::max<int64_t>(need_count(runtime, given[0], 1 << 30), 0);
    runtime.charge(static_cast<size_t>(width));
    margin = std::string(static_cast<size_t>(width), ' ');
  }
  if (value.is_string() && value.string().markup) runtime.unsupported("`indent` of a text that is marked safe");
  runtime.charge(need_text(runtime, value).size());
  const std::vector<std::string> lines = split_lines(runtime, value.text() + "\n");
  const bool blank = truth(given[2]);
  std::string out = truth(given[1]) ? margin : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    runtime.charge(margin.size() + lines[i].size() + 1);
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += margin;
    out += lines[i];
  }
  return runtime.text(std::move(out));
}

Value truncate(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::string end = given[2].is_missing() ? "..." : need_text(runtime, given[2]);
  const Int tail = static_cast<Int>(count_characters(end));
  const Int most = given[0].is_missing() ? 255 : need_integer(runtime, given[0]);
  const Int leeway = given[3].is_missing() || given[3].is_none() ? 5 : need_integer(runtime, given[3]);
  if (most < tail) runtime.fail("expected length >= " + text_of(tail) + ", got " + text_of(most));
  if (leeway < 0) runtime.fail("expected leeway >= 0, got " + text_of(leeway));
  if (const auto size = length(value); size && *size <= most + leeway) return value;
  const std::u32string codes = runtime.codes(need_text(runtime, value));
  std::u32string_view head = std::u32string_view(codes).substr(0, static_cast<size_t>(most - tail));
  if (!truth(given[1])) head = head.substr(0, head.rfind(U' '));
  return runtime.text(to_utf8(head) + end);
}

Value wordcount(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "wordcount", arguments, {});
  Int words = 0;
  bool inside = false;
  const std::u32string codes = runtime.codes(str(runtime, value));
  runtime.pass_slowly(codes.size() * 8);  // the classes of each
  for (const char32_t code : codes) {
    const bool word = code == '_' || is(CharClass::alpha, code) || is(CharClass::numeric, code);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(words);
}

Value format(Runtime& runtime, const Value& value, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    runtime.fail("can't handle positional and keyword arguments at the same time");
  const Value text = soft(runtime, value);
  if (text.string().markup) runtime.unsupported("`format` of a text that is marked safe");
  if (arguments.named.empty())
    return runtime.text(percent_format(runtime, text.text(), runtime.row(arguments.positional, Flavour::tuple)));
  Pairs items;
  for (const auto& [name, item] : arguments.named) items.emplace_back(runtime.text(name), item);
  return runtime.text(percent_format(runtime, text.text(), runtime.dict(std::move(items))));
}

Value to_string(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "string", arguments, {});
  return soft(runtime, value);
}

Value safe(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "safe", arguments, {});
  return runtime.text(str(runtime, value), true);
}

Value escape(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "escape", arguments, {});
  return runtime.text(escaped(runtime, value), true);
}

Value force_escape(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "forceescape", arguments, {});
  return runtime.text(escaped(runtime, runtime.text(str(runtime, value))), true);
}

std::string quoted(Runtime& runtime, const std::string& text, bool query) {
  static constexpr std::string_view kPlain = "_.-~", kDigits = "0123456789ABCDEF";
  runtime.charge(3 * text.size());
  runtime.pass_slowly(3 * text.size());
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       kPlain.find(c) != std::string_view::npos || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += '%';
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

Value urlencode(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "urlencode", arguments, {});
  if (value.is_string() || !is_iterable(value)) return runtime.text(quoted(runtime, str(runtime, value), false));
  std::string out;
  const auto append = [&](const Value& key, const Value& item) {
    if (!out.empty()) out += '&';
    out += quoted(runtime, str(runtime, key), true);
    out += '=';
    out += quoted(runtime, str(runtime, item), true);
  };
  if (value.is(Kind::dict)) {
    for (const auto& [key, item] : value.dict().items) append(key, item);
  } else {
    for (const Value& item : iterate(runtime, value)) {
      const auto pair = iterate(runtime, item);
      if (pair.size() != 2) runtime.fail("urlencode wants pairs");
      append(pair[0], pair[1]);
    }
  }
  return runtime.text(std::move(out));
}

Value to_json_filter(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = truth(given[0]), .sort_keys = truth(given[3]), .indent = {}};
  if (given[1].is_string()) {
    style.indent = given[1].text();
  } else if (!given[1].is_missing() && !given[1].is_none()) {
    const int64_t width = std::max<int64_t>(need_count(runtime, given[1], 1 << 16), 0);
    style.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (style.indent) style.item_separator = ",";
  if (!given[2].is_missing() && !given[2].is_none()) {
    const auto separators = iterate(runtime, given[2]);
    if (separators.size() != 2) runtime.fail("tojson: separators are two strings");
    style.item_separator = need_text(runtime, separators[0]);
    style.key_separator = need_text(runtime, separators[1]);
  }
  return runtime.text(to_json(runtime, value, style));
}

constexpr FilterRow kFilters[] = {{"upper", as_method<"upper">},
                                  {"lower", as_method<"lower">},
                                  {"capitalize", as_method<"capitalize">},
                                  {"title", title_words},
                                  {"trim", trim},
                                  {"replace", replace},
                                  {"center", center},
                                  {"indent", indent},
                                  {"truncate", truncate},
                                  {"wordcount", wordcount},
                                  {"format", format},
                                  {"string", to_string},
                                  {"safe", safe},
                                  {"e", escape},
                                  {"escape", escape},
                                  {"forceescape", force_escape},
                                  {"urlencode", urlencode},
                                  {"tojson", to_json_filter},
                                  {"abs", absolute},
                                  {"int", to_integer},
                                  {"float", to_real},
                                  {"round", rounded}};

}  // namespace

std::span<const FilterRow> text_filters() {
  return kFilters;
}

}  // namespace lockstep::text::jinja
