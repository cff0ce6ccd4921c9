// LaTeX of an answer as tokens, without what only changes how it looks. Takes time that grows with the text's length.
//
//   dropped     $ \( \) \[ \] \$ \! \left \right, sizes, \displaystyle and fonts (\mathbf{7} is {7})
//   one name    \dfrac \tfrac: frac; \le \leq: le; ...; signs of Unicode (π √ × − ∞ ≤ °) as their commands
//   numbers     digits of "1,234.50", "1{,}234", "1 234" (groups of three), "1.5e3" without separators; within
//               ( ) [ ] \{ \} a plain comma stands between two numbers. "\," is a space, but separates no digits.
//   text        what is inside \text, \mathrm, \mbox ... is one token, as written
//   names       sqrt, pi, sin ... without a backslash, if no letter stands beside them, are the commands
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rl {

enum class TokenKind {
  number,   // "1234.50", "1e3"; digits only but for one point and one exponent
  letter,   // one ASCII letter, or one character of several bytes
  command,  // its name: "frac", "alpha"; "begin pmatrix", "end pmatrix"
  symbol,   // one of + - * / ^ _ ( ) [ ] { } | = < > , : ; ! & % ' and others; "\{", "\}", "\\"
  text,
};

struct LatexToken {
  TokenKind kind = TokenKind::symbol;
  std::string text;
  bool space = false;  // white space or a spacing command stands before it

  bool is(TokenKind of, std::string_view what) const { return kind == of && text == what; }
  bool symbol(std::string_view what) const { return is(TokenKind::symbol, what); }
  bool command(std::string_view what) const { return is(TokenKind::command, what); }
};
using TokenSpan = std::span<const LatexToken>;

std::vector<LatexToken> latex_tokens(std::string_view latex);

// One spelling for texts with the same tokens; braces around a single token are left out.
std::string canonical_text(TokenSpan tokens);

// The letters in lower case if there are only letters ("no solution" is nosolution), else empty.
std::string only_word(TokenSpan tokens);

}  // namespace lockstep::rl
