// Parses numbers and strings as templates write them.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace lockstep::text::jinja {

struct NumberLiteral {
  std::string_view text;  // what was read
  Value value;
  bool too_large = false;
};

// The number at the beginning, which is a digit. After a dot (`x.1.2`) it is an integer.
NumberLiteral read_number(std::string_view text, bool behind_dot);

// The text of a string literal without its quotes. `bad` receives an escape that is unknown or no character.
std::string unescaped(std::string_view literal, std::string& bad);

}  // namespace lockstep::text::jinja
