// A parsed template. Immutable; many renderings may read it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace lockstep::text::jinja {

enum class BinaryOperator { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class CompareOperator { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Named {
  std::string name;
  ExpressionPtr value;
};

// The arguments of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<Named> named;
  ExpressionPtr star, double_star;
};

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // text, name
    attribute,    // children[0] . text
    item,         // children[0] [ children[1] ]
    slice,        // children[0] [ children[1] : children[2] : children[3] ]; null: left out
    tuple,        // children
    list,         // children
    dict,         // children: key, value, key, value ...
    call,         // children[0] ( arguments )
    filter,       // children[0] | text ( arguments ); null: the text of a filter block
    test,         // children[0] is text ( arguments )
    conditional,  // children: condition, then, else; null: left out
    both,         // children[0] and children[1]
    either,       // children[0] or children[1]
    negation,     // not children[0]
    minus,        // - children[0]
    plus,         // + children[0]
    binary,       // children[0] op children[1]
    compare,      // children[0] comparisons[0] children[1] ...
    concat,       // children, joined by ~
    member        // name . text as the target of an assignment to a namespace
  };
  Kind kind = Kind::constant;
  int line = 1;
  int depth = 1;  // of expressions inside one another
  std::string text;
  int32_t name = 0;  // number of the variable in Template::names
  Value value;
  std::vector<ExpressionPtr> children;
  CallArguments arguments;
  BinaryOperator op = BinaryOperator::add;
  std::vector<CompareOperator> comparisons;
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string text;
  int32_t name = 0;
  ExpressionPtr fallback;
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

struct Statement {
  enum class Kind {
    data,         // text
    output,       // expressions
    conditional,  // branches
    loop,         // target in expression if condition: body, else
    assign,       // target = expression
    capture,      // set target: body, through `expression` (a filter) if there is one
    macro,        // text, name, parameters, body
    call,         // parameters; `expression` is the call; body
    generation,   // body
    filter,       // expression; body
    with,         // parameters with their values; body
    leave,        // break
    next          // continue
  };
  Kind kind = Kind::data;
  int line = 1;
  std::string text;
  int32_t name = 0;
  ExpressionPtr target, expression, condition;
  std::vector<ExpressionPtr> expressions;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Block body, otherwise;
  std::vector<int32_t> unset, otherwise_unset;  // variables that are undefined in them until they are set (symbols.h)
  bool recursive = false;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  // of a macro: its body asks for them
};

// Numbers of the variables the evaluator itself sets.
struct SpecialNames {
  int32_t loop = 0, caller = 0, kwargs = 0, varargs = 0;
};

struct Tree {
  Block body;
  std::vector<std::string> names;  // of variables, by number
  SpecialNames special;
  std::vector<int32_t> unset;
};

}  // namespace lockstep::text::jinja
