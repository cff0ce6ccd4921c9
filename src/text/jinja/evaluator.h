// Evaluates a parsed template: one object per rendering.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "text/jinja/loop.h"
#include "text/jinja/runtime.h"

namespace lockstep::text::jinja {

class Evaluator {
 public:
  // `context`: the variables that the template is given. All arguments must outlive the object.
  Evaluator(const Tree& tree, Runtime& runtime, const std::map<std::string, Value>& context);

  void run();
  std::string output;
  // Bytes of `output` that generation blocks wrote. As in transformers, a block whose text passes through a variable or
  // a macro is counted where the output stood when the block was evaluated.
  std::vector<Span> generation_spans;

 private:
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow { normal, leave, next };

  Flow execute(const Block& block, const ScopePtr& scope, std::string& out);
  Flow execute(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow conditional(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow capture(const Statement& statement, const ScopePtr& scope);
  Flow filter_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow with_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  void define(const Statement& statement, const ScopePtr& scope);
  void call_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  void generation(const Statement& statement, const ScopePtr& scope, std::string& out);
  void assign(const Expression& target, const Value& value, const ScopePtr& scope);
  void check_members(const Expression& target, const ScopePtr& scope);
  void unpack(const Expression& target, const Value& value, const ScopePtr& scope);

  Flow loop(const Statement& statement, const ScopePtr& scope, const Value& iterable, std::string& out, int64_t depth0);
  std::shared_ptr<Loop> start_loop(const Statement& statement, const ScopePtr& scope, const Value& iterable,
                                   int64_t depth0);
  void append_text(std::string& out, const Value& value);
  void append(std::string& out, const std::string& text);
  void set(Scope& scope, int32_t name, Value value);
  void spans_to_bytes();
  std::string body_text(const Statement& statement, const ScopePtr& scope);
  ScopePtr inner_scope(const ScopePtr& scope, const std::vector<int32_t>& unset);

  Value evaluate(const Expression& node, const ScopePtr& scope);
  Value compound(const Expression& node, const ScopePtr& scope);
  Value variable(const Expression& node, const ScopePtr& scope);
  Value slice(const Expression& node, const ScopePtr& scope);
  Value row(const Expression& node, const ScopePtr& scope);
  Value dict(const Expression& node, const ScopePtr& scope);
  Value conditional_value(const Expression& node, const ScopePtr& scope);
  Value binary(const Expression& node, const ScopePtr& scope);
  Value comparison(const Expression& node, const ScopePtr& scope);
  Value concatenation(const Expression& node, const ScopePtr& scope);
  Value filtered(const Expression& node, const ScopePtr& scope);
  Value call(const Expression& node, const ScopePtr& scope, const Value* caller = nullptr);
  Value call_value(const Value& callee, Arguments& arguments);
  Value call_macro(const Macro& macro, Arguments& arguments);
  Arguments arguments_of(const CallArguments& given, const ScopePtr& scope);

  const Tree& tree_;
  Runtime& runtime_;
  std::vector<Value> context_;                         // by number of the name
  size_t counted_bytes_ = 0, counted_characters_ = 0;  // of the output, up to the last generation block
  const std::string* captured_ = nullptr;              // text of the filter block that is being filtered
};

}  // namespace lockstep::text::jinja
