// --rm-type json_schema: the response is JSON that fits the label's schema.
#pragma once

#include <optional>
#include <string_view>

#include "core/json.h"
#include "rl/reward/work.h"

namespace lockstep::rl {

// JSON Schema, draft 2020-12, of these keywords: type, enum, const; properties, required, additionalProperties,
// minProperties, maxProperties; items, prefixItems, minItems, maxItems, uniqueItems; minLength, maxLength, pattern (a
// regular expression of Python's); minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; allOf, anyOf,
// oneOf, not; $ref into the same schema. Annotations (title, format, default, ...) say nothing.
// nullopt: another keyword, one of the wrong type, more than a hundred schemas inside one another, or more than `work`.
std::optional<bool> fits_schema(const Json& schema, const Json& value, Work& work);

// Whether it is a schema whose outermost keywords are among these.
bool is_schema(std::string_view label);

// 1: the response, or what stands in its last fence of three backticks, is one JSON value that fits; else 0. nullopt:
// the label is no schema.
std::optional<double> grade_json_schema(std::string_view response, std::string_view label);

}  // namespace lockstep::rl
