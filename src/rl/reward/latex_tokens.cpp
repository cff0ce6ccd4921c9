#include "rl/reward/latex_tokens.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace lockstep::rl {

namespace {

using Names = std::span<const std::string_view>;
struct Alias {
  std::string_view from;
  TokenKind kind;
  std::string_view to;
};

constexpr std::string_view kSpaces[] = {"quad", "qquad", "thinspace", "enspace", "space", "medspace", "thickspace"};
constexpr std::string_view kDropped[] = {
    "left",       "right",  "big",        "Big",       "bigg",       "Bigg",         "bigl",   "bigr",
    "Bigl",       "Bigr",   "biggl",      "biggr",     "middle",     "displaystyle", "rm",     "bf",
    "it",         "limits", "nolimits",   "textstyle", "mathbf",     "mathit",       "mathsf", "mathtt",
    "boldsymbol", "bm",     "mathnormal", "boxed",     "ensuremath", "operatorname"};
constexpr std::string_view kTexts[] = {"text",   "textbf",     "textit", "textrm", "textsf", "texttt",
                                       "textup", "textnormal", "mathrm", "mbox",   "hbox"};
// Written without a backslash.
constexpr std::string_view kPlainNames[] = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp"};
constexpr Alias kAliases[] = {
    {"dfrac", TokenKind::command, "frac"},
    {"tfrac", TokenKind::command, "frac"},
    {"cfrac", TokenKind::command, "frac"},
    {"dbinom", TokenKind::command, "binom"},
    {"tbinom", TokenKind::command, "binom"},
    {"leq", TokenKind::command, "le"},
    {"leqslant", TokenKind::command, "le"},
    {"geq", TokenKind::command, "ge"},
    {"geqslant", TokenKind::command, "ge"},
    {"neq", TokenKind::command, "ne"},
    {"varnothing", TokenKind::command, "emptyset"},
    {"land", TokenKind::command, "wedge"},
    {"cdot", TokenKind::symbol, "*"},
    {"times", TokenKind::symbol, "*"},
    {"ast", TokenKind::symbol, "*"},
    {"div", TokenKind::symbol, "/"},
    {"lt", TokenKind::symbol, "<"},
    {"gt", TokenKind::symbol, ">"},
    {"colon", TokenKind::symbol, ":"},
    {"vert", TokenKind::symbol, "|"},
    {"lvert", TokenKind::symbol, "|"},
    {"rvert", TokenKind::symbol, "|"},
    {"mid", TokenKind::symbol, "|"},
    {"lbrace", TokenKind::symbol, "\\{"},
    {"rbrace", TokenKind::symbol, "\\}"},
    {"lbrack", TokenKind::symbol, "["},
    {"rbrack", TokenKind::symbol, "]"},
    {"degree", TokenKind::symbol, "°"},
    {"dots", TokenKind::command, "ldots"},
    {"cdots", TokenKind::command, "ldots"},
};
constexpr Alias kUnicode[] = {
    {"π", TokenKind::command, "pi"},       {"√", TokenKind::command, "sqrt"}, {"∞", TokenKind::command, "infty"},
    {"≤", TokenKind::command, "le"},       {"≥", TokenKind::command, "ge"},   {"≠", TokenKind::command, "ne"},
    {"±", TokenKind::command, "pm"},       {"∪", TokenKind::command, "cup"},  {"∈", TokenKind::command, "in"},
    {"∅", TokenKind::command, "emptyset"}, {"−", TokenKind::symbol, "-"},     {"×", TokenKind::symbol, "*"},
    {"·", TokenKind::symbol, "*"},         {"÷", TokenKind::symbol, "/"},     {"°", TokenKind::symbol, "°"},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool contains(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<LatexToken> run() {
    while (at_ < text_.size()) step();
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool digits_ahead(size_t ahead, size_t count) const {
    for (size_t i = 0; i < count; ++i)
      if (!is_digit(peek(ahead + i))) return false;
    return true;
  }

  void add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), std::exchange(space_, false)});
  }
  void add_symbol(std::string_view symbol) {
    if (symbol == "(" || symbol == "[" || symbol == "\\{") ++brackets_;
    if (brackets_ > 0 && (symbol == ")" || symbol == "]" || symbol == "\\}")) --brackets_;
    add(TokenKind::symbol, std::string(symbol));
  }
  void add(const Alias& alias) {
    if (alias.kind == TokenKind::symbol)
      add_symbol(alias.to);
    else
      add(alias.kind, std::string(alias.to));
  }

  void step() {
    const char c = peek();
    if (is_space(c) || c == '~') {
      space_ = true;
      ++at_;
    } else if (c == '\\') {
      command();
    } else if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      number();
    } else if (is_letter(c)) {
      letters();
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      unicode();
    } else if (c == '*' && peek(1) == '*') {
      add_symbol("^");  // a power as programs write it
      at_ += 2;
    } else {
      if (c != '$') add_symbol(text_.substr(at_, 1));
      ++at_;
    }
  }

  // The characters inside the braces that begin here, or the next character; passes over them.
  std::string_view argument() {
    while (is_space(peek())) ++at_;
    if (peek() != '{') {
      const size_t begin = at_;
      at_ = std::min(at_ + 1, text_.size());
      return text_.substr(begin, at_ - begin);
    }
    const size_t begin = ++at_;
    for (int64_t depth = 1; at_ < text_.size(); ++at_) {
      if (peek() == '\\') {
        ++at_;
      } else if (peek() == '{') {
        ++depth;
      } else if (peek() == '}' && --depth == 0) {
        return text_.substr(begin, at_++ - begin);
      }
    }
    at_ = text_.size();
    return text_.substr(begin);
  }

  void command() {
    ++at_;
    const size_t begin = at_;
    while (is_letter(peek())) ++at_;
    if (at_ > begin) return named(text_.substr(begin, at_ - begin));
    const char c = peek();
    at_ = std::min(at_ + 1, text_.size());
    constexpr std::string_view kNoSign = "!()[]$#/-";
    if (is_space(c) || c == ',' || c == ';' || c == ':' || c == '>')
      space_ = true;
    else if (c == '{' || c == '}' || c == '\\' || c == '|')
      add_symbol(std::string("\\") + c);
    else if (c != '\0' && kNoSign.find(c) == std::string_view::npos)
      add_symbol(std::string(1, c));
  }

  void named(std::string_view name) {
    if (contains(kSpaces, name)) {
      space_ = true;
    } else if (contains(kDropped, name)) {
      if ((name == "left" || name == "right") && peek() == '.') ++at_;
    } else if (contains(kTexts, name)) {
      add(TokenKind::text, std::string(argument()));
    } else if (name == "begin" || name == "end") {
      add(TokenKind::command, std::string(name) + " " + std::string(argument()));
    } else if (const auto* alias = std::ranges::find(kAliases, name, &Alias::from); alias != std::end(kAliases)) {
      add(*alias);
    } else {
      add(TokenKind::command, std::string(name));
    }
  }

  void letters() {
    const size_t begin = at_;
    while (is_letter(peek())) ++at_;
    const std::string_view run = text_.substr(begin, at_ - begin);
    if (contains(kPlainNames, run)) return add(TokenKind::command, std::string(run));
    for (const char c : run) add(TokenKind::letter, std::string(1, c));
  }

  void unicode() {
    for (const Alias& alias : kUnicode)
      if (text_.substr(at_).starts_with(alias.from)) {
        at_ += alias.from.size();
        return add(alias);
      }
    const size_t begin = at_++;
    while ((static_cast<unsigned char>(peek()) & 0xC0) == 0x80) ++at_;
    add(TokenKind::letter, std::string(text_.substr(begin, at_ - begin)));
  }

  // Length of what separates three digits that continue a number from those before them; 0: nothing does.
  size_t separator() const {
    if (text_.substr(at_).starts_with("{,}")) return digits_ahead(3, 3) && !is_digit(peek(6)) ? 3 : 0;
    const size_t length = text_.substr(at_).starts_with(",\\!") ? 3 : 1;
    const bool comma = peek() == ',' && (brackets_ == 0 || length == 3), gap = peek() == ' ';
    return (comma || gap) && digits_ahead(length, 3) && !is_digit(peek(length + 3)) ? length : 0;
  }

  void number() {
    std::string digits;
    while (is_digit(peek())) digits += text_[at_++];
    constexpr size_t kGroup = 3;
    if (!digits.empty() && digits.size() <= kGroup && digits[0] != '0') {
      while (const size_t length = separator()) {
        digits += text_.substr(at_ + length, kGroup);
        at_ += length + kGroup;
      }
    }
    if (peek() == '.' && is_digit(peek(1))) {
      digits += text_[at_++];
      while (is_digit(peek())) digits += text_[at_++];
    }
    const bool sign = peek(1) == '-' || peek(1) == '+';
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(sign ? 2 : 1))) {
      digits += 'e';
      ++at_;
      do digits += text_[at_++];
      while (is_digit(peek()));
    }
    add(TokenKind::number, std::move(digits));
  }

  const std::string_view text_;
  size_t at_ = 0;
  int64_t brackets_ = 0;
  bool space_ = false;
  std::vector<LatexToken> tokens_;
};

// In lower case, without white space around it and with one space for each inside.
std::string tidy(std::string_view text) {
  std::string tidied;
  for (const char c : text) {
    if (!is_space(c))
      tidied += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!tidied.empty() && tidied.back() != ' ')
      tidied += ' ';
  }
  if (tidied.ends_with(' ')) tidied.pop_back();
  return tidied;
}

}  // namespace

std::vector<LatexToken> latex_tokens(std::string_view latex) {
  return Lexer(latex).run();
}

std::string canonical_text(TokenSpan tokens) {
  std::string text;
  bool after_number = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool braced = tokens[i].symbol("{") && i + 2 < tokens.size() && tokens[i + 2].symbol("}") &&
                        (tokens[i + 1].text.size() == 1 || tokens[i + 1].kind == TokenKind::command) &&
                        !tokens[i + 1].symbol("{") && !tokens[i + 1].symbol("}");
    const LatexToken& token = tokens[braced ? i + 1 : i];
    if (braced) i += 2;
    const bool number = token.kind == TokenKind::number;
    if (number && after_number) text += ' ';
    if (token.kind == TokenKind::command) text += '\\';
    text += token.kind == TokenKind::text ? tidy(token.text) : token.text;
    if (token.kind == TokenKind::command) text += ' ';
    after_number = number;
  }
  return text;
}

std::string only_word(TokenSpan tokens) {
  std::string word;
  for (const LatexToken& token : tokens) {
    if (token.kind != TokenKind::letter) return "";
    word += token.text;
  }
  return tidy(word);
}

}  // namespace lockstep::rl
