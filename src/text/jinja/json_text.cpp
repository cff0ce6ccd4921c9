// json.dumps, as the tojson filter of transformers calls it.
#include <algorithm>
#include <cmath>

#include "core/json_escape.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value, int level) {
    const Runtime::Level nested(runtime_);
    runtime_.step(4);
    switch (value.kind()) {
      case Kind::string: return string(value.text());
      case Kind::sequence:
        if (value.is_sequence(Flavour::list) || value.is_sequence(Flavour::tuple)) return list(value.sequence(), level);
        break;
      case Kind::dict: return dict(value.dict(), level);
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::real: return put(scalar(value));
      default: break;
    }
    runtime_.fail("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
  }

  std::string out;

 private:
  void put(std::string_view text) {
    runtime_.charge(text.size());
    out += text;
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is(Kind::boolean)) return value.boolean() ? "true" : "false";
    if (value.is(Kind::integer)) return text_of(value.integer());
    if (std::isnan(value.real())) return "NaN";
    if (std::isinf(value.real())) return value.real() > 0 ? "Infinity" : "-Infinity";
    return repr(value.real());
  }

  void string(const std::string& text) {
    const size_t begin = out.size();
    runtime_.pass_slowly(text.size());
    if (style_.ensure_ascii) runtime_.charge_codes(text);
    out += '"';
    const auto one = [&](uint32_t unit) {
      const bool plain = unit >= 0x20 && unit != '"' && unit != '\\' && !(style_.ensure_ascii && unit == 0x7F);
      if (plain)
        out += static_cast<char>(unit);
      else
        append_json_escape(out, unit);
    };
    if (!style_.ensure_ascii) {
      for (const char c : text) one(static_cast<unsigned char>(c));
    } else {
      for (const char32_t letter : to_codes(text)) {
        if (letter < 0x80) {
          one(letter);
        } else if (letter < 0x10000) {
          append_json_escape(out, letter);
        } else {
          append_json_escape(out, 0xD800 + ((letter - 0x10000) >> 10));
          append_json_escape(out, 0xDC00 + ((letter - 0x10000) & 0x3FF));
        }
      }
    }
    out += '"';
    runtime_.charge(out.size() - begin);
  }

  void new_line(int level) {
    if (!style_.indent) return;
    runtime_.step(1 + level / 4);
    put("\n");
    for (int i = 0; i < level; ++i) put(*style_.indent);
  }

  void list(const Sequence& row, int level) {
    if (row.items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < row.items.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line(level + 1);
      write(row.items[i], level + 1);
    }
    new_line(level);
    put("]");
  }

  void dict(const Dict& dict, int level) {
    if (dict.items.empty()) return put("{}");
    runtime_.charge(dict.items.size() * 2 * sizeof(Value));
    Pairs items = dict.items;
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return ordered(runtime_, a.first, b.first, "<"); });
    put("{");
    for (size_t i = 0; i < items.size(); ++i) {
      const Value& key = items[i].first;
      if (!key.is_string() && !key.is_number() && !key.is_none())
        runtime_.fail("keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
      if (i > 0) put(style_.item_separator);
      new_line(level + 1);
      string(key.is_string() ? key.text() : scalar(key));
      put(style_.key_separator);
      write(items[i].second, level + 1);
    }
    new_line(level);
    put("}");
  }

  Runtime& runtime_;
  const JsonStyle& style_;
};

}  // namespace

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace lockstep::text::jinja
