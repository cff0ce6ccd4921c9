#include "rl/reward/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/utf8.h"
#include "rl/reward/extract.h"
#include "rl/reward/pattern.h"

namespace lockstep::rl {

namespace {

constexpr int kMaxDepth = 100;

// Thrown by what a schema asks for and this file does not know.
struct Unreadable {};

void require(bool readable) {
  if (!readable) throw Unreadable();
}

constexpr std::array<std::string_view, 13> kAnnotations = {
    "$schema",     "$id",     "$comment", "$defs",      "definitions", "title",    "format",
    "description", "default", "examples", "deprecated", "readOnly",    "writeOnly"};

bool is_integer(const Json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return is_integer(value);
  if (type == "boolean") return value.is_boolean();
  require(type == "null");
  return value.is_null();
}

size_t num_characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

class Validator {
 public:
  Validator(const Json& root, Work& work) : root_(root), work_(work) {}

  bool fits(const Json& schema, const Json& value) {
    constexpr int64_t kCost = 2000;
    require(work_.spend(kCost) && depth_ < kMaxDepth);
    if (schema.is_boolean()) return schema.get<bool>();
    require(schema.is_object());
    ++depth_;
    bool good = true;
    for (const auto& [keyword, argument] : schema.items()) good = holds(schema, keyword, argument, value) && good;
    --depth_;
    return good;
  }

 private:
  bool holds(const Json& schema, const std::string& keyword, const Json& argument, const Json& value) {
    if (std::ranges::find(kAnnotations, keyword) != kAnnotations.end()) return true;
    if (keyword == "type") return typed(argument, value);
    if (keyword == "enum") {
      require(argument.is_array());
      return std::ranges::find(argument, value) != argument.end();
    }
    if (keyword == "const") return argument == value;
    if (keyword == "$ref") return fits(referred(argument), value);
    if (keyword == "not") return !fits(argument, value);
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") return combined(keyword, argument, value);
    if (const auto verdict = of_object(schema, keyword, argument, value)) return *verdict;
    if (const auto verdict = of_array(schema, keyword, argument, value)) return *verdict;
    if (const auto verdict = of_text(keyword, argument, value)) return *verdict;
    if (const auto verdict = of_number(keyword, argument, value)) return *verdict;
    throw Unreadable();
  }

  static bool typed(const Json& types, const Json& value) {
    if (types.is_string()) return has_type(value, types.get<std::string>());
    require(types.is_array());
    bool any = false;
    for (const Json& type : types) {
      require(type.is_string());
      any = has_type(value, type.get<std::string>()) || any;
    }
    return any;
  }

  bool combined(const std::string& keyword, const Json& schemas, const Json& value) {
    require(schemas.is_array() && !schemas.empty());
    size_t good = 0;
    for (const Json& schema : schemas) good += fits(schema, value) ? 1 : 0;
    return keyword == "allOf" ? good == schemas.size() : keyword == "anyOf" ? good > 0 : good == 1;
  }

  const Json& referred(const Json& reference) {
    require(reference.is_string());
    const auto text = reference.get<std::string>();
    require(text.starts_with("#"));
    try {
      return root_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      throw Unreadable();
    }
  }

  static bool within(const std::string& keyword, const Json& bound, size_t size) {
    require(bound.is_number_unsigned());
    return keyword.starts_with("min") ? size >= bound.get<size_t>() : size <= bound.get<size_t>();
  }

  std::optional<bool> of_object(const Json& schema, const std::string& keyword, const Json& argument,
                                const Json& value) {
    const bool object = value.is_object();
    if (keyword == "minProperties" || keyword == "maxProperties")
      return within(keyword, argument, value.size()) || !object;
    bool good = true;
    if (keyword == "required") {
      require(argument.is_array());
      for (const Json& key : argument) {
        require(key.is_string());
        good = good && (!object || value.contains(key.get<std::string>()));
      }
    } else if (keyword == "properties") {
      require(argument.is_object());
      for (const auto& [key, inner] : argument.items())
        if (object && value.contains(key)) good = fits(inner, value[key]) && good;
    } else if (keyword == "additionalProperties") {
      const Json known = schema.value("properties", Json::object());
      if (object)
        for (const auto& [key, inner] : value.items())
          if (!known.contains(key)) good = fits(argument, inner) && good;
    } else {
      return std::nullopt;
    }
    return good;
  }

  std::optional<bool> of_array(const Json& schema, const std::string& keyword, const Json& argument,
                               const Json& value) {
    const bool array = value.is_array();
    if (keyword == "minItems" || keyword == "maxItems") return within(keyword, argument, value.size()) || !array;
    bool good = true;
    if (keyword == "items") {
      const size_t before = schema.value("prefixItems", Json::array()).size();
      for (size_t i = before; array && i < value.size(); ++i) good = fits(argument, value[i]) && good;
    } else if (keyword == "prefixItems") {
      require(argument.is_array());
      for (size_t i = 0; array && i < std::min(argument.size(), value.size()); ++i)
        good = fits(argument[i], value[i]) && good;
    } else if (keyword == "uniqueItems") {
      require(argument.is_boolean());
      if (!array || !argument.get<bool>()) return true;
      const auto size = static_cast<int64_t>(value.size());
      require(work_.spend(100 * size * size));
      for (size_t i = 0; i < value.size(); ++i)
        for (size_t j = 0; j < i; ++j) good = good && value[i] != value[j];
    } else {
      return std::nullopt;
    }
    return good;
  }

  std::optional<bool> of_text(const std::string& keyword, const Json& argument, const Json& value) {
    const bool text = value.is_string();
    if (keyword == "minLength" || keyword == "maxLength")
      return within(keyword, argument, text ? num_characters(value.get_ref<const std::string&>()) : 0) || !text;
    if (keyword != "pattern") return std::nullopt;
    require(argument.is_string());
    const auto verdict = grade_pattern(text ? value.get<std::string>() : "", argument.get<std::string>());
    require(verdict.has_value());
    return !text || *verdict > 0;
  }

  static std::optional<bool> of_number(const std::string& keyword, const Json& argument, const Json& value) {
    constexpr std::array<std::string_view, 5> kKeywords = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                           "multipleOf"};
    if (std::ranges::find(kKeywords, keyword) == kKeywords.end()) return std::nullopt;
    require(argument.is_number());
    if (!value.is_number()) return true;
    const auto bound = argument.get<double>(), number = value.get<double>();
    if (keyword == "minimum") return number >= bound;
    if (keyword == "maximum") return number <= bound;
    if (keyword == "exclusiveMinimum") return number > bound;
    if (keyword == "exclusiveMaximum") return number < bound;
    require(bound > 0);
    const double times = number / bound;
    return std::abs(times - std::round(times)) < 1e-9;
  }

  const Json& root_;
  Work& work_;
  int depth_ = 0;
};

std::optional<Json> read(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Inside of the last pair of fences, without the word (json) behind the first; all of the text if there are none.
std::string_view fenced(std::string_view text) {
  constexpr std::string_view kFence = "```";
  const size_t close = text.rfind(kFence);
  if (close == std::string_view::npos || close == 0) return text;
  const size_t open = text.rfind(kFence, close - 1);
  if (open == std::string_view::npos) return text;
  const std::string_view inside = text.substr(open + kFence.size(), close - open - kFence.size());
  const size_t line = inside.find('\n');
  return line == std::string_view::npos ? inside : inside.substr(line + 1);
}

}  // namespace

std::optional<bool> fits_schema(const Json& schema, const Json& value, Work& work) {
  try {
    return Validator(schema, work).fits(schema, value);
  } catch (const Unreadable&) {
    return std::nullopt;
  }
}

bool is_schema(std::string_view label) {
  const std::optional<Json> schema = read(label);
  if (!schema || !(schema->is_object() || schema->is_boolean())) return false;
  Work work;
  return fits_schema(*schema, nullptr, work).has_value();
}

std::optional<double> grade_json_schema(std::string_view response, std::string_view label) {
  const std::optional<Json> schema = read(label);
  if (!schema || !(schema->is_object() || schema->is_boolean())) return std::nullopt;
  std::optional<Json> value = read(trimmed(response));
  if (!value) value = read(trimmed(fenced(response)));
  if (!value) return is_schema(label) ? std::optional(0.0) : std::nullopt;
  Work work;
  const std::optional<bool> fits = fits_schema(*schema, *value, work);
  return fits ? std::optional(*fits ? 1.0 : 0.0) : std::nullopt;
}

}  // namespace lockstep::rl
