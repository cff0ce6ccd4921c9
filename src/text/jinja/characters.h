// What Python's str methods know about characters, and its texts of numbers and strings. Texts are UTF-8; a "character"
// is a code point, as in Python. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/utf8.h"

namespace lockstep::text::jinja {

__extension__ typedef __int128 Int;  // Python's integers have no bounds; ours are kept within kLargestInt

// How a class of characters is asked for: str.isalpha and so on, of one character.
enum class CharClass { printable, alpha, decimal, digit, numeric, lower, upper, title, mark };
bool is(CharClass which, uint32_t code);
bool is_space(uint32_t code);       // str.isspace, and \s of Python's re
bool is_line_break(uint32_t code);  // where str.splitlines cuts

std::u32string to_codes(std::string_view utf8);
std::string to_utf8(std::u32string_view codes);
void append_utf8(std::string& out, uint32_t code);
size_t count_characters(std::string_view utf8);
Utf8Char last_character(std::string_view utf8);  // of a text that is not empty

// str.upper, .lower (with the final sigma), .title, .capitalize, .swapcase.
std::string upper(std::string_view utf8);
std::string lower(std::string_view utf8);
std::string title(std::string_view utf8);
std::string capitalize(std::string_view utf8);
std::string swapcase(std::string_view utf8);

std::string_view strip_spaces(std::string_view utf8, bool left = true, bool right = true);
// `characters`: any of these.
// looked_at is called with the bytes of a piece of at most a few kB after it was looked at, so that what throws
// ends the work. Without `characters` white space.
std::string_view strip(std::string_view utf8, std::optional<std::string_view> characters, bool left, bool right,
                       const std::function<void(size_t)>& looked_at);

std::string repr(std::string_view utf8);  // quoted and escaped
std::string repr(double value);           // the shortest text that reads back
std::string text_of(Int value);

}  // namespace lockstep::text::jinja
