#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/functions.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

using Kind = Expression::Kind;

Value Evaluator::evaluate(const Expression& node, const ScopePtr& scope) {
  runtime_.step();
  if (node.kind == Kind::constant) return node.value;
  if (node.kind == Kind::name) return variable(node, scope);
  const Runtime::Level level(runtime_);
  runtime_.line = node.line;
  return compound(node, scope);
}

Value Evaluator::compound(const Expression& node, const ScopePtr& scope) {
  const auto child = [&](size_t i) { return evaluate(*node.children[i], scope); };
  switch (node.kind) {
    case Kind::attribute: {
      const Value object = child(0);
      runtime_.line = node.line;
      return get_attribute(runtime_, object, node.value);
    }
    case Kind::item: {
      const Value object = child(0), key = child(1);
      runtime_.line = node.line;
      return get_item(runtime_, object, key);
    }
    case Kind::slice: return slice(node, scope);
    case Kind::tuple:
    case Kind::list: return row(node, scope);
    case Kind::dict: return dict(node, scope);
    case Kind::call: return call(node, scope);
    case Kind::filter:
    case Kind::test: return filtered(node, scope);
    case Kind::conditional: return conditional_value(node, scope);
    case Kind::both: {
      Value left = child(0);
      return truth(left) ? child(1) : left;
    }
    case Kind::either: {
      Value left = child(0);
      return truth(left) ? left : child(1);
    }
    case Kind::negation: return Value(!truth(child(0)));
    case Kind::minus:
    case Kind::plus: return negative(runtime_, child(0), node.kind == Kind::minus);
    case Kind::binary: return binary(node, scope);
    case Kind::compare: return comparison(node, scope);
    case Kind::concat: return concatenation(node, scope);
    default: return Value::none();  // constants, names and targets do not come here
  }
}

Value Evaluator::variable(const Expression& node, const ScopePtr& scope) {
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    runtime_.step(static_cast<int64_t>(at->variables.size() / 8));
    for (const auto& [name, value] : at->variables)
      if (name == node.name) return value.is_missing() ? runtime_.undefined_variable(tree_.names[size_t(name)]) : value;
  }
  const std::string& name = tree_.names[static_cast<size_t>(node.name)];
  const Value& given = context_[static_cast<size_t>(node.name)];
  if (!given.is_missing()) return given;
  runtime_.line = node.line;
  if (name == "self" || name == "lipsum") runtime_.unsupported("the variable `" + name + "`");
  return runtime_.undefined_variable(name);
}

Value Evaluator::slice(const Expression& node, const ScopePtr& scope) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) parts[i] = node.children[i] ? evaluate(*node.children[i], scope) : Value::none();
  runtime_.line = node.line;
  return get_slice(runtime_, parts[0], parts[1], parts[2], parts[3]);
}

Value Evaluator::row(const Expression& node, const ScopePtr& scope) {
  Values items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) items.push_back(evaluate(*child, scope));
  return runtime_.row(std::move(items), node.kind == Kind::tuple ? Flavour::tuple : Flavour::list);
}

Value Evaluator::dict(const Expression& node, const ScopePtr& scope) {
  Pairs items;
  for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
    const Value key = evaluate(*node.children[i], scope);
    store(runtime_, items, key, evaluate(*node.children[i + 1], scope));
  }
  return runtime_.dict(std::move(items));
}

Value Evaluator::conditional_value(const Expression& node, const ScopePtr& scope) {
  if (truth(evaluate(*node.children[0], scope))) return evaluate(*node.children[1], scope);
  if (node.children[2]) return evaluate(*node.children[2], scope);
  return runtime_.undefined("the inline if-expression on line " + std::to_string(node.line) +
                            " evaluated to false and no else section was defined.");
}

Value Evaluator::binary(const Expression& node, const ScopePtr& scope) {
  const Value left = evaluate(*node.children[0], scope), right = evaluate(*node.children[1], scope);
  runtime_.line = node.line;
  return arithmetic(runtime_, node.op, left, right);
}

namespace {

bool compared(Runtime& runtime, CompareOperator op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOperator::equal: return equal(runtime, a, b);
    case CompareOperator::unequal: return !equal(runtime, a, b);
    case CompareOperator::less: return ordered(runtime, a, b, "<");
    case CompareOperator::less_equal: return ordered(runtime, a, b, "<=");
    case CompareOperator::greater: return ordered(runtime, a, b, ">");
    case CompareOperator::greater_equal: return ordered(runtime, a, b, ">=");
    case CompareOperator::in: return contains(runtime, b, a);
    case CompareOperator::not_in: return !contains(runtime, b, a);
  }
  return false;
}

}  // namespace

Value Evaluator::comparison(const Expression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.children[0], scope);
  for (size_t i = 0; i < node.comparisons.size(); ++i) {
    Value right = evaluate(*node.children[i + 1], scope);
    runtime_.line = node.line;
    if (!compared(runtime_, node.comparisons[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Evaluator::concatenation(const Expression& node, const ScopePtr& scope) {
  Values parts;
  for (const ExpressionPtr& child : node.children) parts.push_back(evaluate(*child, scope));
  std::string out;
  for (const Value& part : parts) append_str(runtime_, out, part);
  return runtime_.text(std::move(out));
}

Value Evaluator::filtered(const Expression& node, const ScopePtr& scope) {
  Value value;
  if (node.children[0])
    value = evaluate(*node.children[0], scope);
  else
    value = runtime_.text(*captured_);
  Arguments arguments = arguments_of(node.arguments, scope);
  runtime_.line = node.line;
  if (node.kind == Kind::filter) return call_filter(runtime_, node.text, value, std::move(arguments));
  return Value(call_test(runtime_, node.text, value, std::move(arguments)));
}

Arguments Evaluator::arguments_of(const CallArguments& given, const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& item : given.positional) arguments.positional.push_back(evaluate(*item, scope));
  for (const Named& named : given.named) arguments.named.emplace_back(named.name, evaluate(*named.value, scope));
  if (given.star) {
    const auto more = iterate(runtime_, evaluate(*given.star, scope));
    runtime_.charge(more.size() * sizeof(Value));
    arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
  }
  if (given.double_star) {
    const Value more = evaluate(*given.double_star, scope);
    runtime_.need_defined(more);
    if (!more.is(Value::Kind::dict))
      runtime_.fail("argument after ** must be a mapping, not " + std::string(type_name(more)));
    for (const auto& [key, value] : more.dict().items) {
      const std::string& name = need_text(runtime_, key);
      runtime_.charge(sizeof(Value) + name.size());
      runtime_.step(static_cast<int64_t>(1 + arguments.named.size() / 8));
      if (std::ranges::count(arguments.named, name, &std::pair<std::string, Value>::first) > 0)
        runtime_.fail("got multiple values for keyword argument " + jinja::repr(name));
      arguments.named.emplace_back(name, value);
    }
  }
  return arguments;
}

Value Evaluator::call(const Expression& node, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*node.children[0], scope);
  Arguments arguments = arguments_of(node.arguments, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  runtime_.line = node.line;
  return call_value(callee, arguments);
}

Value Evaluator::call_value(const Value& callee, Arguments& arguments) {
  switch (callee.kind()) {
    case Value::Kind::callable: return callee.callable().call(runtime_, callee.callable().self, arguments);
    case Value::Kind::macro: return call_macro(callee.macro(), arguments);
    case Value::Kind::loop: {
      if (!callee.loop().body) runtime_.fail("The loop must have the 'recursive' marker to be called recursively.");
      const Values given = bound(runtime_, "loop", arguments, {"iterable"}, 1);
      const auto body = callee.loop().body;
      return runtime_.text(body(given[0]));
    }
    case Value::Kind::turn: {
      Turn& turn = callee.turn();
      if (!turn.joiner) break;
      bound(runtime_, "joiner", arguments, {});
      return turn.next++ == 0 ? runtime_.text("") : turn.items[0];
    }
    default: break;
  }
  runtime_.need_defined(callee);
  runtime_.fail("'" + std::string(type_name(callee)) + "' object is not callable");
}

namespace {

// Takes a named argument out; missing if it is not there.
Value taken(Runtime& runtime, Arguments& arguments, std::string_view name) {
  runtime.step(static_cast<int64_t>(arguments.named.size() / 2));
  const auto found = std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
  if (found == arguments.named.end()) return {};
  Value value = found->second;
  arguments.named.erase(found);
  return value;
}

// What is left after the parameters have theirs.
void bind_rest(Runtime& runtime, const Statement& source, Arguments& arguments, const SpecialNames& special,
               Scope& scope) {
  const auto name = [&] { return source.text.empty() ? "None" : repr(source.text); };
  if (source.uses_kwargs) {
    Pairs items;
    for (const auto& [key, value] : arguments.named) items.emplace_back(runtime.text(key), value);
    scope.set(special.kwargs, runtime.dict(std::move(items)));
  } else if (!arguments.named.empty()) {
    if (std::ranges::count(arguments.named, "caller", &std::pair<std::string, Value>::first) > 0)
      runtime.fail("macro " + name() +
                   " was invoked with two values for the special caller argument. This is most likely a bug.");
    runtime.fail("macro " + name() + " takes no keyword argument " + repr(arguments.named[0].first));
  }
  const size_t count = source.parameters.size();
  if (source.uses_varargs) {
    const size_t first = std::min(count, arguments.positional.size());
    Values rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first), arguments.positional.end());
    scope.set(special.varargs, runtime.row(std::move(rest), Flavour::tuple));
  } else if (arguments.positional.size() > count) {
    runtime.fail("macro " + name() + " takes not more than " + std::to_string(count) + " argument(s)");
  }
}

}  // namespace

Value Evaluator::call_macro(const Macro& macro, Arguments& arguments) {
  const Runtime::Level level(runtime_);
  const Statement& source = *macro.source;
  const ScopePtr scope = inner_scope(macro.scope, source.unset);
  // Each parameter is looked for among those before it.
  runtime_.step(static_cast<int64_t>(8 + source.parameters.size() * (1 + source.parameters.size() / 8)));
  bool found_caller = false;
  for (size_t i = 0; i < source.parameters.size(); ++i) {
    const Parameter& parameter = source.parameters[i];
    found_caller = found_caller || parameter.text == "caller";
    scope->set(parameter.name,
               i < arguments.positional.size() ? arguments.positional[i] : taken(runtime_, arguments, parameter.text));
  }
  if (source.uses_caller && !found_caller) {
    const Value caller = taken(runtime_, arguments, "caller");
    scope->set(tree_.special.caller,
               caller.is_missing() || caller.is_none() ? runtime_.undefined("No caller defined") : caller);
  }
  bind_rest(runtime_, source, arguments, tree_.special, *scope);
  for (const Parameter& parameter : source.parameters) {
    if (!scope->find(parameter.name)->is_missing()) continue;
    Value value = parameter.fallback
                      ? evaluate(*parameter.fallback, scope)
                      : runtime_.undefined("parameter " + jinja::repr(parameter.text) + " was not provided");
    scope->set(parameter.name, std::move(value));
  }
  std::string text;
  execute(source.body, scope, text);
  return runtime_.text(std::move(text));
}

}  // namespace lockstep::text::jinja
