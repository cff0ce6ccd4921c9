#include <algorithm>
#include <set>

#include "text/jinja/functions.h"
#include "text/jinja/parse_state.h"

namespace lockstep::text::jinja {

using Kind = Expression::Kind;

namespace {

std::vector<ExpressionPtr> row(ExpressionPtr a, ExpressionPtr b = nullptr, ExpressionPtr c = nullptr, size_t size = 0) {
  std::vector<ExpressionPtr> children;
  const size_t count = size != 0 ? size : c ? 3 : b ? 2 : 1;
  children.push_back(std::move(a));
  if (count > 1) children.push_back(std::move(b));
  if (count > 2) children.push_back(std::move(c));
  return children;
}

}  // namespace

// a, b, c: a tuple; a: the expression itself.
ExpressionPtr Parser::tuple(bool conditional, Names ends, bool parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_symbol(",");
    const Token& token = current();
    if (token.kind == Token::Kind::variable_end || token.kind == Token::Kind::block_end || token.is_symbol(")") ||
        is_one_of(ends))
      break;
    items.push_back(expression(conditional));
    if (!current().is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parentheses) fail("an expression is missing", line, describe(current()));
  }
  return make(Kind::tuple, line, std::move(items));
}

ExpressionPtr Parser::expression(bool conditional) {
  const Nested nested(*this);
  if (!conditional) return disjunction();
  int line = current().line;
  const size_t since = unknown_.size();
  ExpressionPtr node = disjunction();
  while (skip_name("if")) {
    unknown_.resize(since);  // they may never be reached
    const Inside soft(*this, {.soft = true, .in_loop = context_.in_loop});
    ExpressionPtr condition = disjunction();
    ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
    node = make(Kind::conditional, line, row(std::move(condition), std::move(node), std::move(otherwise), 3));
    line = current().line;
  }
  return node;
}

ExpressionPtr Parser::disjunction() {
  const int line = current().line;
  ExpressionPtr left = conjunction();
  while (skip_name("or")) left = make(Kind::either, line, row(std::move(left), conjunction()));
  return left;
}

ExpressionPtr Parser::conjunction() {
  const int line = current().line;
  ExpressionPtr left = negation();
  while (skip_name("and")) left = make(Kind::both, line, row(std::move(left), negation()));
  return left;
}

ExpressionPtr Parser::negation() {
  const Nested nested(*this);
  const int line = current().line;
  if (!skip_name("not")) return comparison();
  return make(Kind::negation, line, row(negation()));
}

ExpressionPtr Parser::comparison() {
  static const std::map<std::string_view, CompareOperator> kOperators = {
      {"==", CompareOperator::equal},      {"!=", CompareOperator::unequal}, {"<", CompareOperator::less},
      {"<=", CompareOperator::less_equal}, {">", CompareOperator::greater},  {">=", CompareOperator::greater_equal}};
  const int line = current().line;
  std::vector<ExpressionPtr> terms;
  terms.push_back(sum());
  std::vector<CompareOperator> comparisons;
  for (;;) {
    const auto found = current().kind == Token::Kind::symbol ? kOperators.find(current().text) : kOperators.end();
    if (found != kOperators.end()) {
      next();
      comparisons.push_back(found->second);
    } else if (skip_name("in")) {
      comparisons.push_back(CompareOperator::in);
    } else if (current().is_name("not") && ahead().is_name("in")) {
      next();
      next();
      comparisons.push_back(CompareOperator::not_in);
    } else {
      break;
    }
    terms.push_back(sum());
  }
  if (comparisons.empty()) return std::move(terms[0]);
  ExpressionPtr node = make(Kind::compare, line, std::move(terms));
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPtr Parser::sum() {
  const int line = current().line;
  ExpressionPtr left = concatenation();
  while (current().is_symbol("+") || current().is_symbol("-")) {
    const BinaryOperator op = next().text == "+" ? BinaryOperator::add : BinaryOperator::subtract;
    left = make(Kind::binary, line, row(std::move(left), concatenation()));
    left->op = op;
  }
  return left;
}

ExpressionPtr Parser::concatenation() {
  const int line = current().line;
  std::vector<ExpressionPtr> terms;
  terms.push_back(product());
  while (skip_symbol("~")) terms.push_back(product());
  if (terms.size() == 1) return std::move(terms[0]);
  return make(Kind::concat, line, std::move(terms));
}

ExpressionPtr Parser::product() {
  static const std::map<std::string_view, BinaryOperator> kOperators = {{"*", BinaryOperator::multiply},
                                                                        {"/", BinaryOperator::divide},
                                                                        {"//", BinaryOperator::floor_divide},
                                                                        {"%", BinaryOperator::modulo}};
  const int line = current().line;
  ExpressionPtr left = power();
  while (current().kind == Token::Kind::symbol) {
    const auto found = kOperators.find(current().text);
    if (found == kOperators.end()) break;
    next();
    left = make(Kind::binary, line, row(std::move(left), power()));
    left->op = found->second;
  }
  return left;
}

ExpressionPtr Parser::power() {
  const int line = current().line;
  ExpressionPtr left = unary();
  while (skip_symbol("**")) {  // from the left, unlike Python
    left = make(Kind::binary, line, row(std::move(left), unary()));
    left->op = BinaryOperator::power;
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = current().line;
  ExpressionPtr node;
  if (skip_symbol("-"))
    node = make(Kind::minus, line, row(unary(false)));
  else if (skip_symbol("+"))
    node = make(Kind::plus, line, row(unary(false)));
  else
    node = primary();
  node = postfix(std::move(node));
  while (with_filter) {
    if (current().is_symbol("|"))
      node = filters(std::move(node));
    else if (current().is_name("is"))
      node = test(std::move(node));
    else if (current().is_symbol("("))
      node = call(std::move(node));
    else
      break;
  }
  return node;
}

ExpressionPtr Parser::primary() {
  const Token token = current();
  const auto constant = [&](Value value) {
    ExpressionPtr node = make(Kind::constant, token.line);
    node->value = std::move(value);
    return node;
  };
  switch (token.kind) {
    case Token::Kind::name:
      next();
      if (token.text == "true" || token.text == "True") return constant(Value(true));
      if (token.text == "false" || token.text == "False") return constant(Value(false));
      if (token.text == "none" || token.text == "None") return constant(Value::none());
      return name_node(token.text, token.line);
    case Token::Kind::string: {
      std::string text;
      while (current().kind == Token::Kind::string) text += next().text;
      return constant(make_string(std::move(text)));
    }
    case Token::Kind::number: next(); return constant(token.number);
    default: break;
  }
  if (skip_symbol("(")) {
    ExpressionPtr node = tuple(true, {}, true);
    expect_symbol(")");
    return node;
  }
  if (token.is_symbol("[")) return list();
  if (token.is_symbol("{")) return dict();
  fail("an expression is missing", token.line, describe(token));
}

ExpressionPtr Parser::list() {
  const int line = current().line;
  expect_symbol("[");
  std::vector<ExpressionPtr> items;
  while (!current().is_symbol("]")) {
    if (!items.empty()) expect_symbol(",");
    if (current().is_symbol("]")) break;
    items.push_back(expression());
  }
  expect_symbol("]");
  return make(Kind::list, line, std::move(items));
}

ExpressionPtr Parser::dict() {
  const int line = current().line;
  expect_symbol("{");
  std::vector<ExpressionPtr> items;
  while (!current().is_symbol("}")) {
    if (!items.empty()) expect_symbol(",");
    if (current().is_symbol("}")) break;
    items.push_back(expression());
    expect_symbol(":");
    items.push_back(expression());
  }
  expect_symbol("}");
  return make(Kind::dict, line, std::move(items));
}

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  for (;;) {
    if (current().is_symbol(".") || current().is_symbol("["))
      node = subscript(std::move(node));
    else if (current().is_symbol("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr node) {
  const Token token = next();
  if (token.text == "[") return subscribed(std::move(node), token.line);
  const Token name = next();
  if (name.kind == Token::Kind::name) {
    ExpressionPtr made = make(Kind::attribute, token.line, row(std::move(node)));
    made->text = name.text;
    made->value = make_string(name.text);
    return made;
  }
  if (name.kind != Token::Kind::number || !name.number.is_integer())
    fail("a name or a number must follow a dot", name.line, describe(name));
  ExpressionPtr index = make(Kind::constant, name.line);
  index->value = name.number;
  return make(Kind::item, token.line, row(std::move(node), std::move(index)));
}

// What stands in [ ]: an expression, or start:stop:step.
ExpressionPtr Parser::subscribed(ExpressionPtr node, int line) {
  std::vector<ExpressionPtr> parts;
  bool is_slice = false;
  parts.push_back(std::move(node));
  if (current().is_symbol("]")) fail("an index is missing", line);
  for (size_t part = 0; part < 3; ++part) {
    const bool left_out = current().is_symbol(":") || current().is_symbol("]");
    parts.push_back(left_out ? nullptr : expression());
    if (!current().is_symbol(":") || part == 2) break;
    next();
    is_slice = true;
  }
  if (current().is_symbol(",")) {
    if (is_slice) fail("an index of several slices is not supported", line);
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(parts[1]));
    while (skip_symbol(",")) items.push_back(expression());
    parts[1] = make(Kind::tuple, line, std::move(items));
  }
  expect_symbol("]");
  if (!is_slice) return make(Kind::item, line, std::move(parts));
  parts.resize(4);
  return make(Kind::slice, line, std::move(parts));
}

std::string Parser::dotted_name() {
  std::string name = expect(Token::Kind::name, "a name").text;
  while (skip_symbol(".")) name += "." + expect(Token::Kind::name, "a name").text;
  return name;
}

ExpressionPtr Parser::filters(ExpressionPtr node) {
  while (skip_symbol("|")) node = one_filter(std::move(node));
  return node;
}

ExpressionPtr Parser::one_filter(ExpressionPtr node) {
  const int line = current().line;
  ExpressionPtr made = make(Kind::filter, line, row(std::move(node)));
  made->text = dotted_name();
  if (!context_.soft && !is_filter(made->text)) unknown_.push_back({line, made->text, true});
  if (current().is_symbol("(")) made->arguments = call_arguments();
  finish(*made);
  return made;
}

ExpressionPtr Parser::test(ExpressionPtr node) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExpressionPtr made = make(Kind::test, line, row(std::move(node)));
  made->text = dotted_name();
  if (!context_.soft && !is_test(made->text)) unknown_.push_back({line, made->text, false});
  const Token& token = current();
  const bool opens = token.is_symbol("[") || token.is_symbol("{");
  const bool word = token.kind == Token::Kind::name && !is_one_of({"else", "or", "and"});
  if (token.is_symbol("(")) {
    made->arguments = call_arguments();
  } else if (word || opens || token.kind == Token::Kind::string || token.kind == Token::Kind::number) {
    if (token.is_name("is")) fail("tests cannot be chained with `is`", token.line);
    made->arguments.positional.push_back(postfix(primary()));
  }
  finish(*made);
  return negated ? make(Kind::negation, line, row(std::move(made))) : std::move(made);
}

ExpressionPtr Parser::call(ExpressionPtr node) {
  const int line = current().line;
  ExpressionPtr made = make(Kind::call, line, row(std::move(node)));
  made->arguments = call_arguments();
  finish(*made);
  return made;
}

CallArguments Parser::call_arguments() {
  const int line = current().line;
  expect_symbol("(");
  CallArguments given;
  std::set<std::string> named;
  const auto ensure = [&](bool legal) {
    if (!legal) fail("the arguments of a call are out of order", line);
  };
  for (bool first = true; !current().is_symbol(")"); first = false) {
    if (!first) {
      expect_symbol(",");
      if (current().is_symbol(")")) break;
    }
    if (skip_symbol("*")) {
      ensure(!given.star && !given.double_star);
      given.star = expression();
    } else if (skip_symbol("**")) {
      ensure(!given.double_star);
      given.double_star = expression();
    } else if (current().kind == Token::Kind::name && ahead().is_symbol("=")) {
      ensure(!given.double_star);
      const std::string name = next().text;
      next();
      ensure(named.insert(name).second);
      given.named.push_back({name, expression()});
    } else {
      ensure(!given.star && !given.double_star && given.named.empty());
      given.positional.push_back(expression());
    }
  }
  expect_symbol(")");
  return given;
}

}  // namespace lockstep::text::jinja
