#include "text/jinja/lexer.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/jinja/literals.h"

namespace lockstep::text::jinja {

void syntax_error(const std::string& where, int line, const std::string& what, const std::string& got,
                  const std::string& wanted) {
  throw FormatError({.what = what, .where = where + " line " + std::to_string(line), .got = got, .wanted = wanted});
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::data: return "text";
    case Token::Kind::block_begin: return "'{%'";
    case Token::Kind::block_end: return "'%}'";
    case Token::Kind::variable_begin: return "'{{'";
    case Token::Kind::variable_end: return "'}}'";
    case Token::Kind::string: return "a string";
    case Token::Kind::number: return "a number";
    case Token::Kind::end: return "the end of the template";
    default: return "'" + token.text + "'";
  }
}

namespace {

// Newlines as jinja reads them: one \n each, and the last one of the template is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& where) : source_(std::move(source)), text_(source_), where_(where) {}

  std::vector<Token> run() {
    while (place_ < text_.size()) root();
    push(Token::Kind::end);
    return std::move(tokens_);
  }

 private:
  void push(Token::Kind kind, std::string text = "") {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text), .number = {}});
  }
  bool at(std::string_view text) const { return text_.substr(place_).starts_with(text); }
  void advance(size_t bytes) {
    line_ += static_cast<int>(std::ranges::count(text_.substr(place_, bytes), '\n'));
    place_ += bytes;
  }
  void skip_spaces() {
    while (place_ < text_.size()) {
      const Utf8Char next = read_utf8(text_.substr(place_));
      if (!is_space(next.code)) break;
      advance(next.size);
    }
  }

  // Text up to the next {{, {% or {#, which may take whitespace before it away.
  void root() {
    size_t tag = place_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
        data(text_.substr(place_));
        return advance(text_.size() - place_);
      }
      if (const char kind = text_[tag + 1]; kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const bool signed_tag = sign == '-' || sign == '+';
    const std::string_view whole = text_.substr(place_, tag - place_);
    data(before_tag(whole, sign, kind != '{'));
    advance(whole.size());
    const int begin = line_;
    advance(signed_tag ? 3 : 2);
    line_starting_ = false;
    if (kind == '#') return comment(begin);
    if (kind == '%' && raw(begin)) return;
    push(kind == '%' ? Token::Kind::block_begin : Token::Kind::variable_begin);
    inside(kind == '%' ? Token::Kind::block_end : Token::Kind::variable_end);
  }

  void data(std::string_view text) {
    if (!text.empty()) push(Token::Kind::data, std::string(text));
  }

  // `-` takes all whitespace before the tag; lstrip_blocks takes the blanks between the beginning of a line and a
  // block or comment.
  std::string_view before_tag(std::string_view text, char sign, bool block) const {
    if (sign == '-') return strip_spaces(text, false, true);
    if (sign == '+' || !block) return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return strip_spaces(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  // What follows the end of a tag: `-` takes all whitespace, a block or comment (without +) one newline.
  void after_tag(bool strip, bool trim) {
    if (strip)
      skip_spaces();
    else if (trim && at("\n"))
      advance(1);
    line_starting_ = place_ > 0 && text_[place_ - 1] == '\n';
  }

  void comment(int line) {
    const size_t end = text_.find("#}", place_);
    if (end == std::string_view::npos) syntax_error(where_, line, "a comment does not end", "", "'#}'");
    const char sign = end > place_ ? text_[end - 1] : '\0';
    advance(end + 2 - place_);
    after_tag(sign == '-', sign != '+');
  }

  // {% raw %} ... {% endraw %}: text in which nothing is a tag.
  bool raw(int line) {
    const size_t begin = place_;
    const auto word = [&](std::string_view name) {
      skip_spaces();
      if (!at(name)) return false;
      advance(name.size());
      skip_spaces();
      return true;
    };
    const int begin_line = line_;
    const auto back = [&] {
      place_ = begin;
      line_ = begin_line;
      return false;
    };
    if (!word("raw")) return back();
    const bool strip = at("-%}");
    if (!strip && !at("%}")) return back();
    advance(strip ? 3 : 2);
    if (strip) skip_spaces();
    line_starting_ = text_[place_ - 1] == '\n';
    for (size_t tag = text_.find("{%", place_); tag != std::string_view::npos; tag = text_.find("{%", tag + 1)) {
      const std::string_view text = text_.substr(place_, tag - place_);
      size_t end = tag + 2;
      const char sign = end < text_.size() ? text_[end] : '\0';
      if (sign == '-' || sign == '+') ++end;
      const std::string_view rest = strip_spaces(text_.substr(end), true, false);
      if (!rest.starts_with("endraw")) continue;
      const std::string_view tail = strip_spaces(rest.substr(6), true, false);
      const char last = tail.empty() ? '\0' : tail[0];
      const bool marked = last == '-' || last == '+';
      if (!tail.substr(marked ? 1 : 0).starts_with("%}")) continue;
      data(before_tag(text, sign, true));
      advance(static_cast<size_t>(tail.data() - text_.data()) + (marked ? 3 : 2) - place_);
      after_tag(last == '-', last != '+');
      return true;
    }
    syntax_error(where_, line, "a raw block does not end", "", "{% endraw %}");
  }

  // Names, literals and operators up to the end of the tag.
  void inside(Token::Kind closing) {
    const bool block = closing == Token::Kind::block_end;
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that wait for their partner
    for (;;) {
      skip_spaces();
      if (place_ >= text_.size()) return;
      const bool strip = at("-") && text_.substr(place_ + 1).starts_with(end);
      const bool keep = block && at("+") && text_.substr(place_ + 1).starts_with(end);
      if (open.empty() && (strip || keep || at(end))) {
        push(closing);
        advance(strip || keep ? 3 : 2);
        return after_tag(strip, block && !keep);
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = text_[place_];
    const Utf8Char code = read_utf8(text_.substr(place_));
    const size_t begin = place_;
    if (c >= '0' && c <= '9') {
      const NumberLiteral literal = read_number(text_.substr(place_), place_ > 0 && text_[place_ - 1] == '.');
      if (literal.too_large) syntax_error(where_, line_, "a number is too large", std::string(literal.text));
      push(Token::Kind::number, std::string(literal.text));
      tokens_.back().number = literal.value;
      return advance(literal.text.size());
    }
    if (c == '_' || is(CharClass::alpha, code.code)) {
      size_t end = begin;
      while (end < text_.size()) {
        const Utf8Char next = read_utf8(text_.substr(end));
        if (next.code != '_' && !is(CharClass::alpha, next.code) && !is(CharClass::decimal, next.code) &&
            !(next.code > 0x7F && is(CharClass::mark, next.code)))
          break;
        end += next.size;
      }
      push(Token::Kind::name, std::string(text_.substr(begin, end - begin)));
      return advance(end - begin);
    }
    if (c == '\'' || c == '"') return string(c);
    symbol(open);
  }

  void string(char quote) {
    size_t end = place_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) syntax_error(where_, line_, "a string does not end", std::string(1, quote));
    std::string bad;
    const std::string_view literal = text_.substr(place_ + 1, end - place_ - 1);
    push(Token::Kind::string, unescaped(literal, bad));
    if (!bad.empty()) syntax_error(where_, line_, "a string has an escape that is not supported", bad);
    advance(end + 1 - place_);
  }

  void symbol(std::string& open) {
    static constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto found = std::ranges::find_if(kSymbols, [&](std::string_view symbol) { return at(symbol); });
    if (found == std::end(kSymbols)) {
      const size_t size = read_utf8(text_.substr(place_)).size;
      syntax_error(where_, line_, "an unexpected character", std::string(text_.substr(place_, size)));
    }
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c)
        syntax_error(where_, line_, "a bracket closes nothing", std::string(1, c),
                     open.empty() ? "" : std::string(1, open.back()));
      open.pop_back();
    }
    push(Token::Kind::symbol, std::string(*found));
    advance(found->size());
  }

  const std::string source_;
  const std::string_view text_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t place_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  if (const size_t valid = valid_utf8_prefix(source); valid != source.size())
    syntax_error(where, 1 + static_cast<int>(std::ranges::count(source.substr(0, valid), '\n')),
                 "the template is no UTF-8");
  return Lexer(normalized(source), where).run();
}

}  // namespace lockstep::text::jinja
