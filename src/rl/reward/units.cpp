#include "rl/reward/units.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::rl {

namespace {

constexpr std::string_view kUnits[] = {
    // length, area, volume
    "mm", "cm", "dm", "km", "meter", "metre", "millimeter", "centimeter", "kilometer", "inch", "inches", "in", "foot",
    "feet", "ft", "yard", "yd", "mile", "mi", "liter", "litre", "milliliter", "ml", "gallon", "acre", "unit", "square",
    "sq", "cubic",
    // time
    "second", "sec", "minute", "min", "hour", "hr", "hrs", "day", "week", "month", "year",
    // mass
    "gram", "kilogram", "mg", "kg", "pound", "lb", "lbs", "ounce", "oz", "ton",
    // money
    "dollar", "usd", "cent", "euro", "rupee", "yuan",
    // angles, rates, others
    "degree", "deg", "radian", "rad", "mph", "kmh", "kph", "per", "percent", "point", "people", "person", "piece"};
constexpr std::string_view kUnitLetters[] = {"m", "s", "h", "g", "l", "d", "c", "f"};
constexpr std::string_view kMoreThanUnits[] = {"and",  "or",   "if",   "when", "for",   "where", "not",  "no",
                                               "more", "less", "than", "at",   "least", "most",  "to",   "mod",
                                               "base", "from", "is",   "are",  "with",  "plus",  "minus"};
constexpr std::pair<std::string_view, int64_t> kFactors[] = {
    {"thousand", 1'000}, {"million", 1'000'000}, {"billion", 1'000'000'000}, {"trillion", 1'000'000'000'000}};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

bool is_unit(std::string_view word) {
  return contains(kUnits, word) ||
         (word.size() > 3 && word.ends_with('s') && contains(kUnits, word.substr(0, word.size() - 1)));
}

// Words and signs of a unit; digits only in exponents (m/s^2).
bool is_unit_text(std::string_view text) {
  constexpr std::string_view kSigns = " ./^*-%'\"";
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    const bool letter = (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
    const bool digit = c >= '0' && c <= '9';
    if (digit && (i == 0 || text[i - 1] != '^')) return false;
    if (!letter && !digit && kSigns.find(c) == std::string_view::npos) return false;
    if (letter) {
      word += c;
    } else {
      if (contains(kMoreThanUnits, word)) return false;
      word.clear();
    }
  }
  return true;
}

// Where the last unit of `tokens` begins; their size: they do not end in one.
struct LastUnit {
  size_t begin;
  int64_t factor = 1;
};

bool is_circle(const LatexToken& token) {
  return token.command("circ") || token.symbol("°");
}

// Tokens that a degree sign takes at the end: °, ^°, ^{°}.
size_t degree_length(TokenSpan tokens) {
  const size_t n = tokens.size();
  if (n >= 4 && tokens[n - 4].symbol("^") && tokens[n - 3].symbol("{") && is_circle(tokens[n - 2]) &&
      tokens[n - 1].symbol("}"))
    return 4;
  if (n == 0 || !is_circle(tokens[n - 1])) return 0;
  return n >= 2 && tokens[n - 2].symbol("^") ? 2 : tokens[n - 1].symbol("°") ? 1 : 0;
}

size_t exponent_length(TokenSpan tokens) {
  const size_t n = tokens.size();
  if (n >= 2 && tokens[n - 2].symbol("^") && tokens[n - 1].kind == TokenKind::number) return 2;
  return n >= 4 && tokens[n - 4].symbol("^") && tokens[n - 3].symbol("{") && tokens[n - 2].kind == TokenKind::number &&
                 tokens[n - 1].symbol("}")
             ? 4
             : 0;
}

LastUnit last_unit(TokenSpan tokens, bool beside_slash) {
  const size_t none = tokens.size();
  if (const size_t length = degree_length(tokens)) return {none - length};
  size_t end = none - exponent_length(tokens);
  if (end == 0) return {none};
  std::string word;
  size_t begin = end;
  const bool is_text = tokens[end - 1].kind == TokenKind::text;
  if (is_text) {
    --begin;
  } else {
    while (begin > 0 && tokens[begin - 1].kind == TokenKind::letter && (begin == end || !tokens[begin].space)) --begin;
  }
  word = is_text ? canonical_text(tokens.subspan(begin, 1)) : only_word(tokens.subspan(begin, end - begin));
  for (const auto& [name, factor] : kFactors)
    if (word == name && end == none) return {begin, factor};
  if (is_text) return {is_unit_text(word) ? begin : none};
  beside_slash = beside_slash || (begin > 0 && tokens[begin - 1].symbol("/"));
  const bool alone = contains(kUnitLetters, word) && (beside_slash || degree_length(tokens.first(begin)) > 0);
  return {is_unit(word) || alone ? begin : none};
}

}  // namespace

Quantity without_unit(TokenSpan tokens) {
  Quantity result{.number = tokens};
  bool beside_slash = false;
  while (true) {
    const LastUnit unit = last_unit(result.number, beside_slash);
    if (unit.begin == result.number.size()) break;
    constexpr int64_t kMaxFactor = 1'000'000'000'000;
    if (result.factor > kMaxFactor / unit.factor) return {.number = tokens};
    result.factor *= unit.factor;
    result.number = result.number.first(unit.begin);
    beside_slash = !result.number.empty() && (result.number.back().symbol("/") || result.number.back().symbol("*"));
    if (beside_slash) {
      const TokenSpan before = result.number.first(result.number.size() - 1);
      if (last_unit(before, true).begin == before.size()) return {.number = tokens};
      result.number = before;
    }
  }
  return result.number.empty() ? Quantity{.number = tokens} : result;
}

}  // namespace lockstep::rl
