#include <algorithm>
#include <set>

#include "text/jinja/functions.h"
#include "text/jinja/parse_state.h"
#include "text/jinja/parser.h"
#include "text/jinja/symbols.h"

namespace lockstep::text::jinja {

namespace {

constexpr int kMaxNesting = 500;
using Kind = Statement::Kind;

Statement made(Kind kind, int line) {
  Statement statement;
  statement.kind = kind;
  statement.line = line;
  return statement;
}

}  // namespace

Tree parse(std::string_view source, const std::string& where) {
  return Parser(tokenize(source, where), where).run();
}

Parser::Parser(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {
  tree_.special = {.loop = number_of("loop"),
                   .caller = number_of("caller"),
                   .kwargs = number_of("kwargs"),
                   .varargs = number_of("varargs")};
}

Parser::Nested::Nested(Parser& parser) : parser_(parser) {
  if (++parser.nesting_ > kMaxNesting) {
    --parser.nesting_;
    parser.fail("the template is nested too deeply", parser.current().line);
  }
}

Tree Parser::run() {
  tree_.body = block({});
  if (!unknown_.empty()) fail_unknown(where_, unknown_[0].line, unknown_[0].name, unknown_[0].filter);
  find_unset(tree_);
  return std::move(tree_);
}

void Parser::fail(const std::string& what, int line, const std::string& got, const std::string& wanted) const {
  syntax_error(where_, line, what, got, wanted);
}

Token Parser::next() {
  const size_t place = place_;
  if (place_ + 1 < tokens_.size()) ++place_;
  return tokens_[place];
}

bool Parser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void Parser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol))
    fail("a syntax error", current().line, describe(current()), "'" + std::string(symbol) + "'");
}

Token Parser::expect(Token::Kind kind, const char* what) {
  if (current().kind != kind) fail("a syntax error", current().line, describe(current()), what);
  return next();
}

bool Parser::is_one_of(Names names) const {
  return current().kind == Token::Kind::name && std::ranges::count(names, current().text) > 0;
}

int32_t Parser::number_of(const std::string& name) {
  const auto [found, added] = numbers_.emplace(name, static_cast<int32_t>(tree_.names.size()));
  if (added) tree_.names.push_back(name);
  return found->second;
}

bool Parser::asks_for(std::string_view name, size_t since) const {
  const auto first = std::find_if(uses_.begin() + static_cast<std::ptrdiff_t>(since), uses_.end(),
                                  [&](const Use& use) { return use.name == name; });
  return first != uses_.end() && !first->stored;
}

Block Parser::block(Names ends) {
  const Nested nested(*this);
  Block statements;
  for (;;) {
    const Token& token = current();
    switch (token.kind) {
      case Token::Kind::data:
        statements.push_back(made(Kind::data, token.line));
        statements.back().text = next().text;
        break;
      case Token::Kind::variable_begin: {
        Statement output = made(Kind::output, token.line);
        next();
        output.expressions.push_back(tuple());
        expect(Token::Kind::variable_end, "'}}'");
        statements.push_back(std::move(output));
        break;
      }
      case Token::Kind::block_begin:
        next();
        if (is_one_of(ends)) return statements;
        statements.push_back(statement());
        expect(Token::Kind::block_end, "'%}'");
        break;
      default:
        if (token.kind != Token::Kind::end) fail("a syntax error", token.line, describe(token));
        if (ends.size() > 0)
          fail("the template ends inside a block", token.line, "", "{% " + std::string(*(ends.end() - 1)) + " %}");
        return statements;
    }
  }
}

Block Parser::body(Names ends) {
  skip_symbol(":");
  expect(Token::Kind::block_end, "'%}'");
  return block(ends);
}

Block Parser::body_of(std::string_view end) {
  Block statements = body({end});
  next();
  return statements;
}

void Parser::unknown_tag(const Token& token) const {
  static constexpr std::string_view kKnown[] = {"block", "extends", "include", "import", "from", "autoescape"};
  if (std::ranges::count(kKnown, token.text) > 0) fail("the tag is not supported", token.line, token.text);
  fail("an unknown tag", token.line, describe(token));
}

Statement Parser::statement() {
  const Nested nested(*this);
  static const std::map<std::string_view, Statement (Parser::*)()> kTags = {
      {"for", &Parser::for_statement},
      {"if", &Parser::if_statement},
      {"set", &Parser::set_statement},
      {"macro", &Parser::macro_statement},
      {"call", &Parser::call_statement},
      {"filter", &Parser::filter_statement},
      {"with", &Parser::with_statement},
      {"print", &Parser::print_statement},
      {"break", &Parser::jump_statement},
      {"continue", &Parser::jump_statement},
      {"generation", &Parser::generation_statement}};
  const Token& token = current();
  const auto found = token.kind == Token::Kind::name ? kTags.find(token.text) : kTags.end();
  if (found == kTags.end()) unknown_tag(token);
  return (this->*found->second)();
}

Statement Parser::for_statement() {
  Statement loop = made(Kind::loop, next().line);
  const size_t since = uses_.size();
  loop.target = target(false, {"in"});
  if (!skip_name("in")) fail("a syntax error", current().line, describe(current()), "'in'");
  loop.expression = tuple(false, {"recursive"});
  {
    const Inside inside(*this, {.soft = false, .in_loop = true});
    if (skip_name("if")) loop.condition = expression();
    loop.recursive = skip_name("recursive");
    loop.body = body({"else", "endfor"});
  }
  if (next().text == "else") {
    const Inside inside(*this, {.soft = false, .in_loop = context_.in_loop && !loop.recursive});
    loop.otherwise = body_of("endfor");
  }
  for (size_t i = since; i < uses_.size(); ++i)
    if (uses_[i].stored && uses_[i].name == "loop") fail("`loop` cannot be set inside a for block", loop.line);
  return loop;
}

Statement Parser::if_statement() {
  Statement statement = made(Kind::conditional, current().line);
  const Inside soft(*this, {.soft = true, .in_loop = context_.in_loop});
  std::string tag = next().text;
  while (tag != "endif") {
    Branch branch;
    if (tag != "else") branch.condition = tuple(false);
    branch.body = tag == "else" ? body({"endif"}) : body({"elif", "else", "endif"});
    statement.branches.push_back(std::move(branch));
    tag = next().text;
  }
  return statement;
}

Statement Parser::set_statement() {
  Statement statement = made(Kind::assign, next().line);
  statement.target = target(true, {});
  if (skip_symbol("=")) {
    statement.expression = tuple();
    return statement;
  }
  statement.kind = Kind::capture;
  const Inside inside(*this, {.soft = false, .in_loop = context_.in_loop});
  if (current().is_symbol("|")) statement.expression = filters(nullptr);
  statement.body = body_of("endset");
  return statement;
}

std::vector<Parameter> Parser::signature() {
  std::vector<Parameter> parameters;
  std::set<int32_t> named;
  expect_symbol("(");
  while (!current().is_symbol(")")) {
    if (!parameters.empty()) expect_symbol(",");
    const Token name = expect(Token::Kind::name, "the name of a parameter");
    Parameter parameter{.text = name.text, .name = number_of(name.text), .fallback = nullptr};
    if (!named.insert(parameter.name).second) fail("a parameter is named twice", name.line, name.text);
    if (skip_symbol("="))
      parameter.fallback = expression();
    else if (!parameters.empty() && parameters.back().fallback)
      fail("a parameter without a default follows one that has one", name.line, name.text);
    parameters.push_back(std::move(parameter));
  }
  expect_symbol(")");
  return parameters;
}

namespace {

void note_special_names(Statement& macro, bool caller, bool kwargs, bool varargs) {
  const auto declared = [&](std::string_view name) {
    return std::ranges::count(macro.parameters, name, &Parameter::text) > 0;
  };
  macro.uses_caller = caller;
  macro.uses_kwargs = kwargs && !declared("kwargs");
  macro.uses_varargs = varargs && !declared("varargs");
}

}  // namespace

Statement Parser::macro_statement() {
  Statement macro = made(Kind::macro, next().line);
  const Token name = expect(Token::Kind::name, "the name of the macro");
  macro.text = name.text;
  macro.name = number_of(name.text);
  const Inside inside(*this, {});
  macro.parameters = signature();
  const size_t since = uses_.size();
  macro.body = body_of("endmacro");
  note_special_names(macro, asks_for("caller", since), asks_for("kwargs", since), asks_for("varargs", since));
  const auto explicit_caller = std::ranges::find(macro.parameters, "caller", &Parameter::text);
  if (macro.uses_caller && explicit_caller != macro.parameters.end() && !explicit_caller->fallback)
    fail("the parameter `caller` needs a default", macro.line);
  uses_.push_back({macro.text, true});
  return macro;
}

Statement Parser::call_statement() {
  Statement statement = made(Kind::call, next().line);
  if (current().is_symbol("(")) statement.parameters = signature();
  statement.expression = expression();
  if (statement.expression->kind != Expression::Kind::call) fail("a call is missing", statement.line);
  const Inside inside(*this, {});
  const size_t since = uses_.size();
  statement.body = body_of("endcall");
  note_special_names(statement, asks_for("caller", since), asks_for("kwargs", since), asks_for("varargs", since));
  return statement;
}

Statement Parser::generation_statement() {
  Statement statement = made(Kind::generation, next().line);
  const Inside inside(*this, {});
  statement.body = body_of("endgeneration");
  return statement;
}

Statement Parser::filter_statement() {
  Statement statement = made(Kind::filter, next().line);
  const Inside inside(*this, {.soft = false, .in_loop = context_.in_loop});
  statement.expression = filters(one_filter(nullptr));
  statement.body = body_of("endfilter");
  return statement;
}

Statement Parser::with_statement() {
  Statement statement = made(Kind::with, next().line);
  while (current().kind != Token::Kind::block_end) {
    if (!statement.parameters.empty()) expect_symbol(",");
    const Token name = expect(Token::Kind::name, "a name");
    expect_symbol("=");
    uses_.push_back({name.text, true});
    statement.parameters.push_back({.text = name.text, .name = number_of(name.text), .fallback = expression()});
  }
  const Inside inside(*this, {.soft = false, .in_loop = context_.in_loop});
  statement.body = body_of("endwith");
  return statement;
}

Statement Parser::print_statement() {
  Statement statement = made(Kind::output, next().line);
  while (current().kind != Token::Kind::block_end) {
    if (!statement.expressions.empty()) expect_symbol(",");
    statement.expressions.push_back(expression());
  }
  return statement;
}

Statement Parser::jump_statement() {
  const Token token = next();
  if (!context_.in_loop) fail("nothing to leave: the tag is not inside a for block", token.line, token.text);
  return made(token.text == "break" ? Kind::leave : Kind::next, token.line);
}

ExpressionPtr Parser::target(bool with_member, Names ends) {
  const int line = current().line;
  const size_t since = uses_.size();
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_symbol(",");
    const Token& token = current();
    if (token.kind == Token::Kind::variable_end || token.kind == Token::Kind::block_end || token.is_symbol(")") ||
        is_one_of(ends))
      break;
    items.push_back(simple_target(with_member));
    if (!current().is_symbol(",")) break;
    is_tuple = true;
  }
  if (items.empty()) fail("the name of a variable is missing", line, describe(current()));
  ExpressionPtr node = is_tuple ? make(Expression::Kind::tuple, line, std::move(items)) : std::move(items[0]);
  check_target(*node);
  for (size_t i = since; i < uses_.size(); ++i) uses_[i].stored = true;
  return node;
}

ExpressionPtr Parser::simple_target(bool with_member) {
  if (!with_member || current().kind != Token::Kind::name || !ahead().is_symbol(".")) return primary();
  const Token name = next();
  next();
  ExpressionPtr node = make(Expression::Kind::member, name.line);
  node->name = number_of(name.text);
  node->text = expect(Token::Kind::name, "a name").text;
  return node;
}

void Parser::check_target(const Expression& node) const {
  if (node.kind == Expression::Kind::tuple) {
    for (const ExpressionPtr& item : node.children) check_target(*item);
  } else if (node.kind != Expression::Kind::name && node.kind != Expression::Kind::member) {
    fail("this cannot be assigned to", node.line);
  }
}

}  // namespace lockstep::text::jinja
