#include "rl/reward/math_expression.h"

#include <algorithm>
#include <string>

namespace lockstep::rl {

namespace {

constexpr std::string_view kVariables[] = {
    "alpha",   "beta",  "gamma",    "delta",   "epsilon", "varepsilon", "zeta",  "eta",   "theta", "vartheta",
    "iota",    "kappa", "lambda",   "mu",      "nu",      "xi",         "pi",    "rho",   "sigma", "tau",
    "upsilon", "phi",   "varphi",   "chi",     "psi",     "omega",      "Gamma", "Delta", "Theta", "Lambda",
    "Xi",      "Pi",    "Sigma",    "Upsilon", "Phi",     "Psi",        "Omega", "infty", "ell",   "hbar",
    "aleph",   "angle", "triangle", "nabla",   "partial", "Re",         "Im",    "imath", "jmath"};
constexpr std::string_view kAccents[] = {"mathbb", "mathcal",  "mathfrak", "mathscr", "vec",     "hat",
                                         "bar",    "overline", "tilde",    "dot",     "widehat", "overrightarrow"};

class Parser {
 public:
  Parser(TokenSpan tokens, const ExpressionOptions& options, Work& work)
      : tokens_(tokens), sign_(options.sign), nesting_(options.nesting), work_(work) {}

  MathValue run() {
    const MathValue value = sum();
    return at_ == tokens_.size() ? value : MathValue();
  }

 private:
  // Nothing more is read once a value is unknown, so that every loop ends.
  MathValue fail() {
    failed_ = true;
    return {};
  }
  bool more() const { return !failed_ && at_ < tokens_.size(); }
  const LatexToken& token() const { return tokens_[at_]; }
  bool next_is(std::string_view symbol) const { return more() && token().symbol(symbol); }
  bool next_is_command(std::string_view name) const { return more() && token().command(name); }
  bool next_is_number() const { return more() && token().kind == TokenKind::number; }
  bool take(std::string_view symbol) {
    if (!next_is(symbol)) return false;
    ++at_;
    return true;
  }
  MathValue checked(MathValue value) { return value.known() && !failed_ ? value : fail(); }

  // Runs `read` one level deeper.
  template <class Read>
  MathValue nested(const Read& read) {
    if (nesting_ >= kMaxNesting) return fail();
    ++nesting_;
    MathValue value = read();
    --nesting_;
    return value;
  }

  // The sign that stands here, if one does: 1 or -1; 0: none.
  int take_sign() {
    if (take("+")) return 1;
    if (take("-")) return -1;
    const int plus_minus = next_is_command("pm") ? sign_ : next_is_command("mp") ? -sign_ : 0;
    if (plus_minus != 0) ++at_;
    return plus_minus;
  }
  int take_signs() {
    int product = 1;
    while (const int sign = take_sign()) product *= sign;
    return product;
  }

  MathValue sum() {
    return nested([this] {
      MathValue total = MathValue::integer(0);
      int sign = take_signs();
      do {
        const MathValue term = product();
        if (failed_) return fail();
        total = checked(add(total, sign < 0 ? negate(term, work_) : term, work_));
        sign = more() ? take_sign() : 0;
        if (sign != 0) sign *= take_signs();
      } while (sign != 0 && !failed_);
      return failed_ ? fail() : total;
    });
  }

  MathValue product() {
    MathValue value = factor();
    bool ratio = false;
    while (more()) {
      const bool times = take("*"), colon = !times && take(":"), over = colon || (!times && take("/"));
      if (!times && !over && !begins_factor()) break;
      if (colon && ratio) return fail();  // 1:2:3 is no number
      ratio = ratio || colon;
      const int sign = times || over ? take_signs() : 1;
      const MathValue next = factor();
      if (failed_) break;
      value = checked(over ? divide(value, next, work_) : multiply(value, next, work_));
      if (sign < 0) value = negate(value, work_);
    }
    return failed_ ? fail() : value;
  }

  // May a factor without a sign begin here? A number may not: what stands before it would be part of it.
  bool begins_factor() const {
    const LatexToken& next = token();
    switch (next.kind) {
      case TokenKind::letter: return true;
      case TokenKind::text: return next.text.size() == 1;
      case TokenKind::symbol: return next.text == "(" || next.text == "[" || next.text == "{" || next.text == "°";
      case TokenKind::command:
        return is_variable_command(next.text) || is_accent(next.text) || is_function(next.text) ||
               next.text == "frac" || next.text == "binom" || next.text == "sqrt";
      case TokenKind::number: return false;
    }
    return false;
  }
  static bool is_function(std::string_view name) { return is_elementary(name) || name == "exp"; }

  MathValue factor() {
    if (!more()) return fail();
    MathValue value = base();
    bool raised = false;
    while (more()) {
      if (next_is("^")) {
        if (raised) return fail();
        value = raise(value);
        raised = true;
      } else if (take("!")) {
        if (next_is("!")) return fail();  // the double factorial is something else
        value = checked(factorial(value, work_));
      } else {
        break;
      }
    }
    return failed_ ? fail() : value;
  }

  bool degree_ahead() const {
    const auto circle = [this](size_t i) {
      return i < tokens_.size() && (tokens_[i].command("circ") || tokens_[i].symbol("°"));
    };
    return circle(at_ + 1) || (at_ + 3 < tokens_.size() && tokens_[at_ + 1].symbol("{") && circle(at_ + 2) &&
                               tokens_[at_ + 3].symbol("}"));
  }

  // At "^".
  MathValue raise(const MathValue& value) {
    if (degree_ahead()) {
      at_ += tokens_[at_ + 1].symbol("{") ? 4 : 2;
      return checked(multiply(value, MathValue::variable("°"), work_));
    }
    ++at_;
    const int sign = take_signs();
    const MathValue exponent = nested([this] { return argument(false); });
    return failed_ ? fail() : checked(power(value, sign < 0 ? negate(exponent, work_) : exponent, work_));
  }

  // What \frac, \sqrt, ^ take: braces, or one token; of a number its first digit only, if `single`.
  MathValue argument(bool single) {
    if (!more()) return fail();
    if (next_is("{")) return group("{", "}");
    if (!next_is_number()) return base();
    if (!single) return number();
    const std::string& digits = token().text;
    if (digits[taken_digits_] == '.' || digits[taken_digits_] == 'e') return fail();
    const MathValue value = MathValue::number(digits.substr(taken_digits_, 1), work_);
    if (++taken_digits_ == digits.size()) next_token();
    return checked(value);
  }
  void next_token() {
    ++at_;
    taken_digits_ = 0;
  }

  MathValue group(std::string_view open, std::string_view close) {
    if (!take(open)) return fail();
    const MathValue value = sum();
    return take(close) ? value : fail();
  }

  MathValue base() {
    const LatexToken& first = token();
    switch (first.kind) {
      case TokenKind::number: return mixed_number();
      case TokenKind::letter: ++at_; return variable(first.text);
      case TokenKind::text: ++at_; return first.text.size() == 1 ? variable(first.text) : fail();
      case TokenKind::command: return command(first.text);
      case TokenKind::symbol: break;
    }
    if (first.text == "°") {
      ++at_;
      return MathValue::variable("°");
    }
    if (first.text == "(") return group("(", ")");
    if (first.text == "[") return group("[", "]");
    if (first.text == "{") return group("{", "}");
    if (first.text == "|") return checked(absolute(group("|", "|"), work_));
    return fail();
  }

  // The number that is here, or what \frac left of it.
  MathValue number() {
    const std::string digits = token().text.substr(taken_digits_);
    next_token();
    return checked(MathValue::number(digits, work_));
  }

  bool is_integer(size_t i) const {
    return i < tokens_.size() && tokens_[i].kind == TokenKind::number &&
           tokens_[i].text.find_first_of(".e") == std::string::npos;
  }

  // 3\frac12, 3\frac{1}{2}, 3 1/2: an integer and a fraction of integers below 1.
  MathValue mixed_number() {
    const bool integer = taken_digits_ == 0 && is_integer(at_);
    const MathValue whole = number();
    if (failed_ || !integer || !more()) return whole;
    const size_t begin = at_;
    std::string above, below;
    if (next_is_command("frac")) {
      ++at_;
      above = integer_argument();
      below = integer_argument();
    } else if (token().space && is_integer(at_) && at_ + 2 < tokens_.size() && tokens_[at_ + 1].symbol("/") &&
               is_integer(at_ + 2)) {
      above = tokens_[at_].text;
      below = tokens_[at_ + 2].text;
      at_ += 3;
    }
    // Of integers without zeros in front the longer is the larger.
    const bool proper = !above.empty() && !below.empty() && above[0] != '0' && below[0] != '0' &&
                        (above.size() != below.size() ? above.size() < below.size() : above < below);
    if (!proper) {
      at_ = begin;
      taken_digits_ = 0;
      return whole;
    }
    const MathValue part = divide(MathValue::number(above, work_), MathValue::number(below, work_), work_);
    return checked(add(whole, part, work_));
  }

  // "{12}", or a digit; empty: neither.
  std::string integer_argument() {
    if (next_is("{") && is_integer(at_ + 1) && at_ + 2 < tokens_.size() && tokens_[at_ + 2].symbol("}")) {
      at_ += 3;
      return tokens_[at_ - 2].text;
    }
    if (!next_is_number()) return "";
    const std::string digit = token().text.substr(taken_digits_, 1);
    if (!is_integer(at_)) return "";
    if (++taken_digits_ == token().text.size()) next_token();
    return digit;
  }

  // A name with what belongs to it: x_1, a_{n+1}, f'.
  MathValue variable(std::string name) {
    if (take("_")) {
      if (!more()) return fail();
      const size_t begin = at_;
      if (!skip_argument()) return fail();
      name += "_" + canonical_text(tokens_.subspan(begin, at_ - begin));
    }
    while (take("'")) name += "'";
    return MathValue::variable(name);
  }

  // Passes over braces or one token, which of a number is all of it.
  bool skip_argument() {
    int64_t depth = 0;
    do {
      if (!more()) return false;
      if (next_is("{")) ++depth;
      if (next_is("}")) --depth;
      ++at_;
    } while (depth > 0);
    return depth == 0;
  }

  MathValue command(const std::string& name) {
    ++at_;
    if (is_variable_command(name)) return variable("\\" + name);
    if (is_accent(name)) {
      const size_t begin = at_;
      if (!more() || !skip_argument()) return fail();
      const TokenSpan inside = tokens_.subspan(begin, at_ - begin);
      const bool letters = std::ranges::all_of(inside, [](const LatexToken& token) {
        return token.kind == TokenKind::letter || token.symbol("{") || token.symbol("}");
      });
      return letters ? variable("\\" + name + " " + canonical_text(inside)) : fail();
    }
    if (name == "frac" || name == "binom")
      return nested([&] {
        const MathValue above = argument(true), below = failed_ ? MathValue() : argument(true);
        if (failed_) return fail();
        return checked(name == "frac" ? divide(above, below, work_) : binomial(above, below, work_));
      });
    if (name == "sqrt") return nested([this] { return square_root(); });
    if (is_function(name)) return nested([&] { return function(name); });
    return fail();
  }

  MathValue square_root() {
    const MathValue degree = next_is("[") ? group("[", "]") : MathValue::integer(2);
    const MathValue value = failed_ ? MathValue() : argument(false);
    return failed_ ? fail() : checked(root(value, degree, work_));
  }

  // \sin x, \sin^2 x, \log_2 8.
  MathValue function(const std::string& name) {
    MathValue base, exponent;
    if (name == "log" && take("_")) base = argument(true);
    if (!failed_ && take("^")) {
      if (next_is("-")) return fail();  // \sin^{-1} has two meanings
      exponent = argument(false);
    }
    const MathValue value = failed_ ? MathValue() : function_argument();
    if (failed_) return fail();
    MathValue result = base.known()    ? logarithm(base, value, work_)
                       : name == "exp" ? power(MathValue::variable("e"), value, work_)
                                       : elementary(name, value, work_);
    if (exponent.known()) result = power(result, exponent, work_);
    return checked(result);
  }

  // Brackets, or a product of numbers and variables: \sin 2\pi x.
  MathValue function_argument() {
    if (!more()) return fail();
    if (next_is("(")) return group("(", ")");
    if (next_is("{")) return group("{", "}");
    MathValue value = factor();
    while (more() && begins_factor() && !next_is("(") && !next_is("[") &&
           !(token().kind == TokenKind::command && is_function(token().text))) {
      const MathValue next = factor();
      if (failed_) break;
      value = checked(multiply(value, next, work_));
    }
    return failed_ ? fail() : value;
  }

  const TokenSpan tokens_;
  size_t at_ = 0;
  size_t taken_digits_ = 0;  // of the number at at_, by \frac and its like
  const int sign_;
  int nesting_;
  Work& work_;
  bool failed_ = false;
};

}  // namespace

MathValue evaluate(TokenSpan tokens, const ExpressionOptions& options, Work& work) {
  return Parser(tokens, options, work).run();
}

bool is_variable_command(std::string_view name) {
  return std::ranges::find(kVariables, name) != std::end(kVariables);
}

bool is_accent(std::string_view name) {
  return std::ranges::find(kAccents, name) != std::end(kAccents);
}

}  // namespace lockstep::rl
