// Splits a template into tokens, as jinja2 3.1 with trim_blocks and lstrip_blocks; decides which whitespace stays.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace lockstep::text::jinja {

struct Token {
  enum class Kind { data, block_begin, block_end, variable_begin, variable_end, name, string, number, symbol, end };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // of a symbol: the operator; of data and strings: their value
  Value number;
  bool is_symbol(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
};

// FormatError with a line: an open comment, string or bracket, a character that begins nothing. The last token is
// `end`.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

// "a name", "','", "the end of the template": for messages.
std::string describe(const Token& token);

[[noreturn]] void syntax_error(const std::string& where, int line, const std::string& what, const std::string& got = "",
                               const std::string& wanted = "");

}  // namespace lockstep::text::jinja
