#include "rl/reward/math_answer.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "rl/reward/latex_tokens.h"
#include "rl/reward/math_expression.h"
#include "rl/reward/units.h"

namespace lockstep::rl {

namespace {

using Kind = MathAnswer::Kind;

// +1: opens a bracket of any kind, which may close as another one ([0, 1)); -1: closes one.
int bracket(const LatexToken& token) {
  if (token.kind == TokenKind::command)
    return token.text.starts_with("begin ") ? 1 : token.text.starts_with("end ") ? -1 : 0;
  if (token.kind != TokenKind::symbol) return 0;
  const std::string& text = token.text;
  if (text == "(" || text == "[" || text == "{" || text == "\\{") return 1;
  return text == ")" || text == "]" || text == "}" || text == "\\}" ? -1 : 0;
}

bool is_letter(const LatexToken& token, char letter) {
  return token.kind == TokenKind::letter && token.text.size() == 1 && token.text[0] == letter;
}

// Tokens that "and" or "or", as a word of its own, takes here; 0: neither.
size_t conjunction(TokenSpan tokens, size_t at) {
  if (tokens[at].kind == TokenKind::text) {
    const std::string text = canonical_text(tokens.subspan(at, 1));
    return text == "and" || text == "or" || text == ", and" || text == ", or" || text == "," ? 1 : 0;
  }
  for (const std::string_view word : {"and", "or"}) {
    if (!tokens[at].space || at + word.size() >= tokens.size() || !tokens[at + word.size()].space) continue;
    bool same = true;
    for (size_t i = 0; i < word.size(); ++i)
      same = same && is_letter(tokens[at + i], word[i]) && (i == 0 || !tokens[at + i].space);
    if (same) return word.size();
  }
  return 0;
}

TokenSpan without_full_stop(TokenSpan tokens) {
  while (!tokens.empty() && tokens.back().symbol(".")) tokens = tokens.first(tokens.size() - 1);
  return tokens;
}

// The tokens outside of all brackets, and what they say about the whole.
struct Outline {
  std::vector<TokenSpan> parts;       // between commas and conjunctions
  std::vector<size_t> unions, signs;  // places of \cup; of = < > \le \ge \in
  bool balanced = true;
  bool enclosed = false;  // one pair of brackets around everything
  bool plus_minus = false;
};

Outline outline(TokenSpan tokens) {
  Outline result;
  int64_t depth = 0;
  size_t begin = 0;
  bool separated = false;  // one conjunction may follow a comma
  result.enclosed = tokens.size() >= 2 && bracket(tokens.front()) > 0 && bracket(tokens.back()) < 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const LatexToken& token = tokens[i];
    if (token.command("pm") || token.command("mp")) result.plus_minus = true;
    const int step = bracket(token);
    depth += step;
    if (depth < 0) result.balanced = false;
    if (depth == 0 && i + 1 < tokens.size()) result.enclosed = false;
    if (depth != 0 || step != 0) continue;
    const size_t length = token.symbol(",") ? 1 : conjunction(tokens, i);
    if (length > 0) {
      if (!(separated && i == begin)) result.parts.push_back(tokens.subspan(begin, i - begin));
      separated = token.symbol(",");
      i += length - 1;
      begin = i + 1;
    } else if (token.command("cup")) {
      result.unions.push_back(i);
    } else if (token.symbol("=") || token.symbol("<") || token.symbol(">") || token.command("le") ||
               token.command("ge") || token.command("in")) {
      result.signs.push_back(i);
    }
  }
  result.balanced = result.balanced && depth == 0;
  result.parts.push_back(tokens.subspan(begin));
  return result;
}

// x, AB, \alpha_1, f(2), (x, y), \angle ABC: letters, with numbers below them or in brackets.
bool is_name(TokenSpan tokens) {
  int64_t depth = 0;
  bool letters = false, below = false;
  for (const LatexToken& token : tokens) {
    const bool inside = depth > 0 || below;
    below = token.symbol("_");
    depth += bracket(token);
    const bool letter = token.kind == TokenKind::letter || (token.kind == TokenKind::command &&
                                                            (is_variable_command(token.text) || is_accent(token.text)));
    letters = letters || letter;
    const bool other = token.symbol("_") || token.symbol("'") || bracket(token) != 0 ||
                       (inside && (token.kind == TokenKind::number || token.symbol(",")));
    if (!letter && !other) return false;
  }
  return letters;
}

class AnswerParser {
 public:
  explicit AnswerParser(Work& work) : work_(work) {}

  MathAnswer parse(TokenSpan tokens, int nesting) {
    MathAnswer answer{.text = canonical_text(tokens)};
    if (++parts_ > kMaxParts || nesting > kMaxNesting || tokens.empty()) return answer;
    if (tokens.size() == 1 && tokens[0].kind == TokenKind::text && tokens[0].text.size() > 1) {
      const std::vector<LatexToken> inside = latex_tokens(tokens[0].text);
      return parse(without_full_stop(inside), nesting + 1);
    }
    const Outline shape = outline(tokens);
    if (!shape.balanced) return answer;
    if (shape.parts.size() > 1) return list(std::move(answer), shape.parts, nesting);
    if (!shape.unions.empty()) return join(std::move(answer), tokens, shape.unions, nesting);
    if (!shape.signs.empty()) return relation(std::move(answer), tokens, shape.signs, nesting);
    if (shape.enclosed)
      if (auto inside = bracketed(answer, tokens, nesting)) return *std::move(inside);
    if (tokens.size() == 1 && tokens[0].command("emptyset")) {
      answer.kind = Kind::set;
      return answer;
    }
    return scalar(std::move(answer), tokens, shape.plus_minus, nesting);
  }

 private:
  // Parts of one part that is a list, as \pm 2, are parts of the whole.
  MathAnswer list(MathAnswer answer, const std::vector<TokenSpan>& parts, int nesting) {
    answer.kind = Kind::list;
    for (const TokenSpan part : parts) {
      MathAnswer next = parse(part, nesting + 1);
      if (next.kind != Kind::list)
        answer.parts.push_back(std::move(next));
      else
        std::ranges::move(next.parts, std::back_inserter(answer.parts));
    }
    return checked(std::move(answer));
  }

  // What has too many parts is a text.
  MathAnswer checked(MathAnswer answer) const {
    if (parts_ <= kMaxParts) return answer;
    return {.text = std::move(answer.text)};
  }

  MathAnswer join(MathAnswer answer, TokenSpan tokens, const std::vector<size_t>& places, int nesting) {
    answer.kind = Kind::join;
    size_t begin = 0;
    for (size_t i = 0; i <= places.size(); ++i) {
      const size_t end = i < places.size() ? places[i] : tokens.size();
      answer.parts.push_back(parse(tokens.subspan(begin, end - begin), nesting + 1));
      begin = end + 1;
    }
    return checked(std::move(answer));
  }

  MathAnswer relation(MathAnswer answer, TokenSpan tokens, const std::vector<size_t>& places, int nesting) {
    const auto equates = [&](size_t i) { return tokens[i].symbol("=") || tokens[i].command("in"); };
    const auto descends = [&](size_t i) { return tokens[i].symbol(">") || tokens[i].command("ge"); };
    std::vector<TokenSpan> sides;
    for (size_t i = 0, begin = 0; i <= places.size(); ++i) {
      const size_t end = i < places.size() ? places[i] : tokens.size();
      sides.push_back(tokens.subspan(begin, end - begin));
      if (sides.back().empty()) return answer;
      begin = end + 1;
    }
    if (equates(places[0])) {
      if (places.size() > 1) return answer;
      answer.kind = Kind::equation;
      answer.named = is_name(sides[0]) || is_name(sides[1]);
      if (!is_name(sides[0])) std::swap(sides[0], sides[1]);
    } else {
      const bool down = descends(places[0]);
      for (const size_t place : places) {
        if (equates(place) || descends(place) != down) return answer;
        answer.marks += tokens[place].kind == TokenKind::command ? '=' : '<';
      }
      answer.kind = Kind::chain;
      if (down) {
        std::ranges::reverse(sides);
        std::ranges::reverse(answer.marks);
      }
    }
    for (const TokenSpan side : sides) answer.parts.push_back(parse(side, nesting + 1));
    return checked(std::move(answer));
  }

  std::optional<MathAnswer> bracketed(const MathAnswer& answer, TokenSpan tokens, int nesting) {
    const LatexToken &open = tokens.front(), &close = tokens.back();
    const TokenSpan inside = tokens.subspan(1, tokens.size() - 2);
    if (open.kind == TokenKind::command) return matrix(answer, tokens, nesting);
    if (open.symbol("{") || close.symbol("}"))
      return open.symbol("{") && close.symbol("}") ? std::optional(parse(inside, nesting + 1)) : std::nullopt;
    if (open.symbol("\\{") || close.symbol("\\}")) {
      if (!open.symbol("\\{") || !close.symbol("\\}")) return std::nullopt;
      MathAnswer set{.kind = Kind::set, .text = answer.text};
      if (!inside.empty()) take_parts(set, parse(inside, nesting + 1));
      return checked(std::move(set));
    }
    const Outline shape = outline(inside);
    if (shape.parts.size() == 1)
      return open.symbol("(") == close.symbol(")") ? std::optional(parse(inside, nesting + 1)) : std::nullopt;
    MathAnswer tuple{.kind = Kind::tuple, .text = answer.text, .marks = open.text + close.text};
    for (const TokenSpan part : shape.parts) tuple.parts.push_back(parse(part, nesting + 1));
    return checked(std::move(tuple));
  }

  static void take_parts(MathAnswer& whole, MathAnswer inside) {
    if (inside.kind == Kind::list)
      whole.parts = std::move(inside.parts);
    else
      whole.parts.push_back(std::move(inside));
  }

  std::optional<MathAnswer> matrix(const MathAnswer& answer, TokenSpan tokens, int nesting) {
    constexpr std::string_view kKinds[] = {"pmatrix", "bmatrix", "matrix", "smallmatrix", "array"};
    const std::string kind = tokens.front().text.substr(std::string_view("begin ").size());
    if (!tokens.back().command("end " + kind) || std::ranges::find(kKinds, kind) == std::end(kKinds))
      return std::nullopt;
    TokenSpan inside = tokens.subspan(1, tokens.size() - 2);
    if (kind == "array") inside = behind_braces(inside);
    MathAnswer result{.kind = Kind::matrix, .text = answer.text};
    int64_t depth = 0;
    size_t begin = 0;
    bool new_row = true;
    for (size_t i = 0; i <= inside.size(); ++i) {
      const bool end = i == inside.size();
      if (!end) depth += bracket(inside[i]);
      const bool row_ends = end || (depth == 0 && inside[i].symbol("\\\\"));
      if (!row_ends && !(depth == 0 && inside[i].symbol("&"))) continue;
      if (!(end && new_row && begin == i)) {  // the last row may end as the others
        if (new_row) result.parts.push_back({.kind = Kind::tuple, .marks = "()"});
        result.parts.back().parts.push_back(parse(inside.subspan(begin, i - begin), nesting + 1));
      }
      new_row = row_ends;
      begin = i + 1;
    }
    return checked(std::move(result));
  }

  // Without the {cc} that says how the columns of an array are aligned.
  static TokenSpan behind_braces(TokenSpan tokens) {
    if (tokens.empty() || !tokens.front().symbol("{")) return tokens;
    const auto close = std::ranges::find_if(tokens, [](const LatexToken& token) { return token.symbol("}"); });
    return close == tokens.end() ? tokens : TokenSpan(close + 1, tokens.end());
  }

  MathAnswer scalar(MathAnswer answer, TokenSpan tokens, bool plus_minus, int nesting) {
    if (plus_minus) {
      MathAnswer both{.kind = Kind::list, .text = answer.text};
      for (const int sign : {1, -1}) {
        MathAnswer& one = both.parts.emplace_back(MathAnswer{.text = answer.text + (sign > 0 ? "+" : "-")});
        read_value(one, tokens, {.sign = sign, .nesting = nesting});
      }
      ++parts_;
      return both;
    }
    answer.word = only_word(tokens);
    answer.named = is_name(tokens);
    read_value(answer, tokens, {.nesting = nesting});
    return answer;
  }

  void read_value(MathAnswer& answer, TokenSpan tokens, const ExpressionOptions& options) {
    if (tokens.size() > 1 && tokens.back().symbol("%")) {
      answer.percent = true;
      tokens = tokens.first(tokens.size() - 1);
    }
    if (const Quantity quantity = without_unit(tokens); quantity.number.size() < tokens.size()) {
      const MathValue number = evaluate(quantity.number, options, work_);
      if (number.known() && !number.has_variables()) {
        answer.value = multiply(number, MathValue::integer(quantity.factor), work_);
        return;
      }
    }
    answer.value = evaluate(tokens, options, work_);
  }

  Work& work_;
  size_t parts_ = 0;
};

}  // namespace

MathAnswer parse_math_answer(std::string_view latex, Work& work) {
  if (latex.size() > kMaxAnswerBytes) return {.text = std::string(latex)};
  const std::vector<LatexToken> tokens = latex_tokens(latex);
  return AnswerParser(work).parse(without_full_stop(tokens), 0);
}

}  // namespace lockstep::rl
