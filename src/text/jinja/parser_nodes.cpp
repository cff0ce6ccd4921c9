// How the parser makes nodes.
#include <algorithm>

#include "text/jinja/parse_state.h"

namespace lockstep::text::jinja {

namespace {

constexpr int kMaxDepth = 200;
using Kind = Expression::Kind;

}  // namespace

void Parser::finish(Expression& node) const {
  int depth = 0;
  const auto look = [&depth](const ExpressionPtr& child) {
    if (child) depth = std::max(depth, child->depth);
  };
  for (const ExpressionPtr& child : node.children) look(child);
  for (const ExpressionPtr& child : node.arguments.positional) look(child);
  for (const Named& named : node.arguments.named) look(named.value);
  look(node.arguments.star);
  look(node.arguments.double_star);
  node.depth = depth + 1;
  if (node.depth > kMaxDepth) fail("an expression is nested too deeply", node.line);
}

ExpressionPtr Parser::make(Kind kind, int line, std::vector<ExpressionPtr> children) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->children = std::move(children);
  finish(*node);
  return node;
}

ExpressionPtr Parser::name_node(const std::string& text, int line) {
  ExpressionPtr node = make(Kind::name, line);
  node->text = text;
  node->name = number_of(text);
  uses_.push_back({text, false});
  return node;
}

}  // namespace lockstep::text::jinja
