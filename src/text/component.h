// What the readers of the parts of a tokenizer.json share. Internal to text.
#pragma once

#include <functional>
#include <string>

#include "core/json.h"

namespace lockstep::text {

// Deeper nesting of sequences is refused.
inline constexpr int kMaxComponentDepth = 8;

// FormatError: an unsupported tokenizer component.
[[noreturn]] void unsupported_component(const std::string& where, const std::string& got, const std::string& wanted);

// Its "type"; FormatError if it has none.
std::string component_type(const Json& component, const std::string& where);

// The value as text for messages, of bounded length.
std::string shown_json(const Json& value);

// Calls use(component, where) for `component`, or, when it is a Sequence, for each of the list under `list_key`, in
// order and through nested sequences.
void for_each_component(const Json& component, const std::string& where, const char* list_key,
                        const std::function<void(const Json&, const std::string&)>& use);

// A string that is one character; FormatError otherwise.
std::string one_character(const JsonObject& component, const char* key, const std::string& fallback);

}  // namespace lockstep::text
