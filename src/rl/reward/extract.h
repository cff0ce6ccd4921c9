// Where the answer stands in a text: \boxed{} as models are asked to write it (MATH), "####" as GSM8K does.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

// Without white space at both ends.
std::string_view trimmed(std::string_view text);

// What is between the brace at text[open] and its partner; \{ and \} are no braces. nullopt: it has no partner, or
// there is no brace.
std::optional<std::string_view> braced(std::string_view text, size_t open);

// Inside of the last \boxed{}. nullopt: there is no \boxed, or the last is not closed or without braces.
std::optional<std::string_view> last_boxed(std::string_view text);

// The rest of the line behind the last "####", trimmed. nullopt: there is none.
std::optional<std::string_view> marked_answer(std::string_view text);

// The last `count` characters of UTF-8, or all.
std::string_view last_characters(std::string_view text, size_t count);

// What stands behind the last </think>, or the whole text.
std::string_view behind_thought(std::string_view text);

// The answer that a label gives: what is in its last \boxed{}, else behind its last "####", else all of it, trimmed.
// nullopt: nothing is there, or a \boxed cannot be read.
std::optional<std::string_view> label_answer(std::string_view label);

}  // namespace lockstep::rl
