#include <algorithm>
#include <utility>

#include "text/jinja/evaluator.h"
#include "text/jinja/functions.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

using Kind = Statement::Kind;

Evaluator::Evaluator(const Tree& tree, Runtime& runtime, const std::map<std::string, Value>& context)
    : tree_(tree), runtime_(runtime) {
  for (const std::string& name : tree.names) {
    const auto given = context.find(name);
    context_.push_back(given != context.end() ? given->second : global_function(name));
  }
}

void Evaluator::run() {
  execute(tree_.body, inner_scope(nullptr, tree_.unset), output);
  const bool ascii = count_characters(output) == output.size();
  if (!ascii) return spans_to_bytes();
  for (Span& span : generation_spans) span = {std::min(span.begin, output.size()), std::min(span.end, output.size())};
}

// All spans in one pass over the output. What lies beyond its end becomes the end.
void Evaluator::spans_to_bytes() {
  std::vector<size_t*> places;
  for (Span& span : generation_spans) places.insert(places.end(), {&span.begin, &span.end});
  std::ranges::sort(places, {}, [](const size_t* place) { return *place; });
  size_t byte = 0, characters = 0;  // those before `byte`
  for (size_t* place : places) {
    for (; byte < output.size(); ++byte) {
      if ((output[byte] & 0xC0) == 0x80) continue;
      if (characters == *place) break;
      ++characters;
    }
    *place = byte;
  }
}

Evaluator::ScopePtr Evaluator::inner_scope(const ScopePtr& scope, const std::vector<int32_t>& unset) {
  runtime_.step(static_cast<int64_t>(2 + unset.size()));
  auto made = std::make_shared<Scope>(scope);
  for (const int32_t name : unset) made->variables.emplace_back(name, Value());
  return made;
}

Evaluator::Flow Evaluator::execute(const Block& block, const ScopePtr& scope, std::string& out) {
  for (const Statement& statement : block)
    if (const Flow flow = execute(statement, scope, out); flow != Flow::normal) return flow;
  return Flow::normal;
}

Evaluator::Flow Evaluator::execute(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Runtime::Level level(runtime_);
  runtime_.step();
  runtime_.line = statement.line;
  switch (statement.kind) {
    case Kind::data:
      runtime_.charge(statement.text.size());
      out += statement.text;
      break;
    case Kind::output:
      for (const ExpressionPtr& expression : statement.expressions) {
        // Evaluated before anything is appended: a macro in it may look at where the output stands.
        const Value value = evaluate(*expression, scope);
        append_str(runtime_, out, value);
      }
      break;
    case Kind::conditional: return conditional(statement, scope, out);
    case Kind::loop: {
      const Value iterable = evaluate(*statement.expression, scope);
      if (!statement.recursive) return loop(statement, scope, iterable, out, 0);
      std::string text;
      loop(statement, scope, iterable, text, 0);
      append(out, text);
      break;
    }
    case Kind::assign:
      check_members(*statement.target, scope);
      assign(*statement.target, evaluate(*statement.expression, scope), scope);
      break;
    case Kind::capture: return capture(statement, scope);
    case Kind::macro: define(statement, scope); break;
    case Kind::call: call_block(statement, scope, out); break;
    case Kind::generation: generation(statement, scope, out); break;
    case Kind::filter: return filter_block(statement, scope, out);
    case Kind::with: return with_block(statement, scope, out);
    case Kind::leave: return Flow::leave;
    case Kind::next: return Flow::next;
  }
  return Flow::normal;
}

Evaluator::Flow Evaluator::conditional(const Statement& statement, const ScopePtr& scope, std::string& out) {
  for (const Branch& branch : statement.branches)
    if (!branch.condition || truth(evaluate(*branch.condition, scope))) return execute(branch.body, scope, out);
  return Flow::normal;
}

Evaluator::Flow Evaluator::capture(const Statement& statement, const ScopePtr& scope) {
  std::string text;
  const ScopePtr inner = inner_scope(scope, statement.unset);
  if (const Flow flow = execute(statement.body, inner, text); flow != Flow::normal) return flow;
  Value value;
  if (statement.expression) {
    const std::string* outer = std::exchange(captured_, &text);
    value = evaluate(*statement.expression, inner);
    captured_ = outer;
  } else {
    value = runtime_.text(std::move(text));
  }
  check_members(*statement.target, scope);
  assign(*statement.target, value, scope);
  return Flow::normal;
}

Evaluator::Flow Evaluator::filter_block(const Statement& statement, const ScopePtr& scope, std::string& out) {
  std::string text;
  const ScopePtr inner = inner_scope(scope, statement.unset);
  if (const Flow flow = execute(statement.body, inner, text); flow != Flow::normal) return flow;
  const std::string* outer = std::exchange(captured_, &text);
  const Value value = evaluate(*statement.expression, inner);
  captured_ = outer;
  append_text(out, value);
  return Flow::normal;
}

Evaluator::Flow Evaluator::with_block(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const ScopePtr inner = inner_scope(scope, statement.unset);
  for (const Parameter& parameter : statement.parameters)
    set(*inner, parameter.name, evaluate(*parameter.fallback, scope));
  return execute(statement.body, inner, out);
}

void Evaluator::define(const Statement& statement, const ScopePtr& scope) {
  runtime_.charge(sizeof(Macro));
  runtime_.macros.push_back({.source = &statement, .scope = scope});
  set(*scope, statement.name, Value(&runtime_.macros.back()));
}

void Evaluator::call_block(const Statement& statement, const ScopePtr& scope, std::string& out) {
  runtime_.step(8);
  runtime_.charge(sizeof(Macro));
  runtime_.macros.push_back({.source = &statement, .scope = scope});
  const Value caller(&runtime_.macros.back());
  append_text(out, call(*statement.expression, scope, &caller));
}

// What a call or filter block gives must be a text already.
void Evaluator::append_text(std::string& out, const Value& value) {
  if (!value.is_string()) runtime_.fail("expected str instance, " + std::string(type_name(value)) + " found");
  append_str(runtime_, out, value);
}

void Evaluator::generation(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const std::string text = body_text(statement, scope);
  // Counted in characters, as transformers does: the text may end up elsewhere. run() makes them bytes.
  counted_characters_ += count_characters(std::string_view(output).substr(counted_bytes_));
  counted_bytes_ = output.size();
  runtime_.charge(sizeof(Span));
  runtime_.step(4);
  generation_spans.push_back({counted_characters_, counted_characters_ + count_characters(text)});
  append(out, text);
}

void Evaluator::append(std::string& out, const std::string& text) {
  runtime_.charge(text.size());
  out += text;
}

void Evaluator::set(Scope& scope, int32_t name, Value value) {
  runtime_.step(static_cast<int64_t>(scope.variables.size() / 8));
  scope.set(name, std::move(value));
}

std::string Evaluator::body_text(const Statement& statement, const ScopePtr& scope) {
  std::string text;
  execute(statement.body, inner_scope(scope, statement.unset), text);
  return text;
}

// Namespaces are looked for before the value is computed.
void Evaluator::check_members(const Expression& target, const ScopePtr& scope) {
  for (const ExpressionPtr& item : target.children) check_members(*item, scope);
  if (target.kind == Expression::Kind::member && !variable(target, scope).is(Value::Kind::space))
    runtime_.fail("cannot assign attribute on non-namespace object");
}

void Evaluator::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == Expression::Kind::name) return set(*scope, target.name, value);
  if (target.kind == Expression::Kind::tuple) return unpack(target, value, scope);
  Pairs& items = variable(target, scope).space().items;
  runtime_.charge(2 * sizeof(Value));
  store(runtime_, items, runtime_.text(target.text), value);
}

void Evaluator::unpack(const Expression& target, const Value& value, const ScopePtr& scope) {
  if (!is_iterable(value)) runtime_.fail("cannot unpack non-iterable " + std::string(type_name(value)) + " object");
  const auto items = iterate(runtime_, value);
  const size_t wanted = target.children.size();
  if (items.size() > wanted) runtime_.fail("too many values to unpack (expected " + std::to_string(wanted) + ")");
  if (items.size() < wanted)
    runtime_.fail("not enough values to unpack (expected " + std::to_string(wanted) + ", got " +
                  std::to_string(items.size()) + ")");
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], items[i], scope);
}

// The loop's object; what it refers to while it runs is let go at the end, so that nothing owns itself.
std::shared_ptr<Loop> Evaluator::start_loop(const Statement& statement, const ScopePtr& scope, const Value& iterable,
                                            int64_t depth0) {
  runtime_.charge(sizeof(Loop));
  runtime_.step(8);
  auto loop = std::make_shared<Loop>();
  loop->depth0 = depth0;
  loop->depth_of_items = depth_of(iterable);
  const auto source = iterate(runtime_, iterable);
  if (statement.recursive)
    loop->body = [this, &statement, scope, depth0](const Value& inner) {
      std::string text;
      this->loop(statement, scope, inner, text, depth0 + 1);
      return text;
    };
  if (!statement.condition) {
    loop->items = source.held();
    return loop;
  }
  auto accepted = std::make_shared<Values>();
  loop->items = accepted;
  loop->pull = [this, &statement, scope, source, accepted, place = size_t{0}]() mutable {
    while (place < source.size()) {
      runtime_.step(4);
      const Value& item = source[place++];
      const ScopePtr inner = std::make_shared<Scope>(scope);
      assign(*statement.target, item, inner);
      if (!truth(evaluate(*statement.condition, inner))) continue;
      runtime_.charge(sizeof(Value));
      accepted->push_back(item);
      return true;
    }
    return false;
  };
  return loop;
}

Evaluator::Flow Evaluator::loop(const Statement& statement, const ScopePtr& scope, const Value& iterable,
                                std::string& out, int64_t depth0) {
  const Runtime::Level level(runtime_);
  struct Release {
    std::shared_ptr<Loop> loop;
    ~Release() {
      loop->pull = nullptr;
      loop->body = nullptr;
      loop->changed_value.clear();
    }
  };
  const Release running{start_loop(statement, scope, iterable, depth0)};
  Loop& loop = *running.loop;
  ScopePtr inner;
  bool finished_one = false;  // as in jinja2: break or continue in every turn leaves the else to run
  for (size_t i = 0; i < loop.items->size() || (loop.pull && loop.pull()); ++i) {
    runtime_.step(4);
    inner = inner_scope(scope, statement.unset);
    loop.index0 = static_cast<int64_t>(i);
    const Value item = (*loop.items)[i];
    assign(*statement.target, item, inner);
    inner->set(tree_.special.loop, Value(running.loop));
    const Flow flow = execute(statement.body, inner, out);
    if (flow == Flow::leave) break;
    finished_one = finished_one || flow == Flow::normal;
  }
  if (finished_one || statement.otherwise.empty()) return Flow::normal;
  return execute(statement.otherwise, inner_scope(scope, statement.otherwise_unset), out);
}

}  // namespace lockstep::text::jinja
