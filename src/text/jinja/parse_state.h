// What the two halves of the parser share. Internal to parser_*.cpp.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace lockstep::text::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& where);
  Tree run();

 private:
  using Names = std::initializer_list<std::string_view>;

  // Statements: parser_statements.cpp.
  Block block(Names ends);  // up to one of the tags `ends`, whose name is the current token
  Block body(Names ends);   // block_end, then a block
  Block body_of(std::string_view end);
  Statement statement();
  Statement for_statement();
  Statement if_statement();
  Statement set_statement();
  Statement macro_statement();
  Statement call_statement();
  Statement filter_statement();
  Statement with_statement();
  Statement print_statement();
  Statement jump_statement();
  Statement generation_statement();
  std::vector<Parameter> signature();
  [[noreturn]] void unknown_tag(const Token& token) const;

  // Expressions: parser_expressions.cpp.
  ExpressionPtr tuple(bool conditional = true, Names ends = {}, bool parentheses = false);
  ExpressionPtr expression(bool conditional = true);
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr subscribed(ExpressionPtr node, int line);
  ExpressionPtr filters(ExpressionPtr node);     // | name ( arguments ), any number
  ExpressionPtr one_filter(ExpressionPtr node);  // name ( arguments )
  ExpressionPtr test(ExpressionPtr node);
  ExpressionPtr call(ExpressionPtr node);
  CallArguments call_arguments();
  std::string dotted_name();
  ExpressionPtr target(bool with_member, Names ends);  // of an assignment
  ExpressionPtr simple_target(bool with_member);
  void check_target(const Expression& node) const;
  ExpressionPtr make(Expression::Kind kind, int line, std::vector<ExpressionPtr> children = {});
  ExpressionPtr name_node(const std::string& text, int line);
  void finish(Expression& node) const;  // its depth

  // Tokens.
  const Token& current() const { return tokens_[place_]; }
  const Token& ahead() const { return tokens_[std::min(place_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  Token expect(Token::Kind kind, const char* what);
  bool is_one_of(Names names) const;
  int32_t number_of(const std::string& name);
  [[noreturn]] void fail(const std::string& what, int line, const std::string& got = "",
                         const std::string& wanted = "") const;

  // One more level of nesting while the object lives.
  class Nested {
   public:
    explicit Nested(Parser& parser);
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  // The state that a block changes for what is inside it.
  struct Context {
    bool soft = false;     // in an if: unknown filters are an error only when reached
    bool in_loop = false;  // break and continue have something to leave
  };
  class Inside {
   public:
    Inside(Parser& parser, Context context) : parser_(parser), outer_(parser.context_) { parser.context_ = context; }
    ~Inside() { parser_.context_ = outer_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Parser& parser_;
    Context outer_;
  };

  struct Use {
    std::string name;
    bool stored;
  };
  bool asks_for(std::string_view name, size_t since) const;  // read before it is set, in what was parsed since then

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t place_ = 0;
  int nesting_ = 0;
  Context context_;
  std::vector<Use> uses_;
  struct Unknown {
    int line;
    std::string name;
    bool filter;
  };
  std::vector<Unknown> unknown_;  // filters and tests outside of ifs
  std::map<std::string, int32_t> numbers_;
  Tree tree_;
};

}  // namespace lockstep::text::jinja
