#include "text/jinja/symbols.h"

#include <set>

namespace lockstep::text::jinja {

namespace {

using Kind = Statement::Kind;

// One level, looked at in the order in which jinja2's compiler does; the levels inside it come when it is known whole.
class Level {
 public:
  explicit Level(const Level* around) : around_(around) {}

  void declare(int32_t name) { seen_.insert(name); }
  void declare(const Expression& target) {
    if (target.kind == Expression::Kind::name) declare(target.name);
    for (const ExpressionPtr& item : target.children) declare(*item);
  }
  void look(Block& block, bool branch = false) {
    for (Statement& statement : block) look(statement, branch);
  }
  // What is unset in this level; fills in the levels inside.
  std::vector<int32_t> finish(const SpecialNames& special) {
    for (Statement* statement : inner_) {
      Level body(this);
      if (statement->kind == Kind::loop) {
        body.declare(*statement->target);
        body.declare(special.loop);
      }
      for (const Parameter& parameter : statement->parameters) body.declare(parameter.name);
      if (statement->kind != Kind::with)
        for (const Parameter& parameter : statement->parameters) body.read(parameter.fallback);
      body.look(statement->body);
      statement->unset = body.finish(special);
      Level otherwise(this);
      otherwise.look(statement->otherwise);
      statement->otherwise_unset = otherwise.finish(special);
    }
    return std::move(set_first_);
  }

 private:
  void look(Statement& statement, bool branch) {
    for (const ExpressionPtr& expression : statement.expressions) read(expression);
    if (statement.kind == Kind::with)
      for (const Parameter& parameter : statement.parameters) read(parameter.fallback);
    if (statement.kind != Kind::capture) read(statement.expression);
    if (statement.kind == Kind::assign || statement.kind == Kind::capture) write(*statement.target, branch);
    if (statement.kind == Kind::macro) write(statement.name, branch);
    for (Branch& inner : statement.branches) {
      read(inner.condition);
      look(inner.body, true);
    }
    if (!statement.body.empty() || !statement.otherwise.empty()) inner_.push_back(&statement);
  }

  void read(const ExpressionPtr& node) {
    if (!node) return;
    if (node->kind == Expression::Kind::name || node->kind == Expression::Kind::member) seen_.insert(node->name);
    for (const ExpressionPtr& child : node->children) read(child);
    for (const ExpressionPtr& child : node->arguments.positional) read(child);
    for (const Named& named : node->arguments.named) read(named.value);
    read(node->arguments.star);
    read(node->arguments.double_star);
  }

  void write(const Expression& target, bool branch) {
    if (target.kind == Expression::Kind::member) seen_.insert(target.name);
    if (target.kind == Expression::Kind::name) write(target.name, branch);
    for (const ExpressionPtr& item : target.children) write(*item, branch);
  }

  // What only a branch sets may still be the variable that was given.
  void write(int32_t name, bool branch) {
    if (seen_.insert(name).second && !branch && !is_named_around(name)) set_first_.push_back(name);
  }

  bool is_named_around(int32_t name) const {
    for (const Level* level = around_; level != nullptr; level = level->around_)
      if (level->seen_.contains(name)) return true;
    return false;
  }

  const Level* around_;  // the level this one is inside of; nullptr: none
  std::set<int32_t> seen_;
  std::vector<int32_t> set_first_;
  std::vector<Statement*> inner_;
};

}  // namespace

void find_unset(Tree& tree) {
  Level outermost(nullptr);
  outermost.look(tree.body);
  tree.unset = outermost.finish(tree.special);
}

}  // namespace lockstep::text::jinja
