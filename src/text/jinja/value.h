// The values that templates compute with: Python's, as far as a template can observe.
//
// Strings, lists, tuples and dicts are shared and immutable. What is mutable (namespaces, cyclers, scopes of macros)
// belongs to the Runtime of one rendering, and values point to it; so no value can own itself, whatever a template
// builds.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/characters.h"

namespace lockstep::text::jinja {

class Value;
using Values = std::vector<Value>;

struct String {
  std::string text;     // UTF-8
  size_t length = 0;    // characters
  bool markup = false;  // markupsafe.Markup: `safe` and `escape` make it, and text added to it is escaped
  bool ascii() const { return length == text.size(); }
};

// Every sequence of values. An iterator is Python's generator: it can be consumed once and has no length.
struct Sequence;
enum class Flavour { list, tuple, range, keys, values, items, iterator };

struct Dict;
struct Undefined;
struct Space;     // namespace()
struct Callable;  // a method with its object, or a global function
struct Macro;
struct Loop;
struct Turn;  // cycler() and joiner()

struct Missing {
  bool operator==(const Missing&) const = default;
};
struct None {
  bool operator==(const None&) const = default;
};

class Value {
 public:
  // The order of the alternatives below.
  enum class Kind {
    missing,
    none,
    boolean,
    integer,
    real,
    string,
    sequence,
    dict,
    undefined,
    space,
    callable,
    macro,
    loop,
    turn
  };
  using Held = std::variant<Missing, None, bool, Int, double, std::shared_ptr<const String>, std::shared_ptr<Sequence>,
                            std::shared_ptr<const Dict>, std::shared_ptr<const Undefined>, Space*,
                            std::shared_ptr<const Callable>, Macro*, std::shared_ptr<Loop>, Turn*>;

  Value() = default;  // missing: a variable that has no value yet; no expression gives it
  template <class T>
  explicit Value(T held) : held_(std::move(held)) {}
  static Value none() { return Value(None{}); }

  Kind kind() const { return static_cast<Kind>(held_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_missing() const { return is(Kind::missing); }
  bool is_none() const { return is(Kind::none); }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_string() const { return is(Kind::string); }
  bool is_integer() const { return is(Kind::integer) || is(Kind::boolean); }  // Python's bool is an int
  bool is_number() const { return is_integer() || is(Kind::real); }

  bool boolean() const { return std::get<bool>(held_); }
  Int integer() const { return is(Kind::boolean) ? Int{boolean()} : std::get<Int>(held_); }
  double real() const { return is(Kind::real) ? std::get<double>(held_) : static_cast<double>(integer()); }
  const String& string() const { return *std::get<std::shared_ptr<const String>>(held_); }
  const std::string& text() const { return string().text; }
  Sequence& sequence() const { return *std::get<std::shared_ptr<Sequence>>(held_); }
  bool is_sequence(Flavour flavour) const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(held_); }
  const Undefined& undefined() const { return *std::get<std::shared_ptr<const Undefined>>(held_); }
  Space& space() const { return *std::get<Space*>(held_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(held_); }
  Macro& macro() const { return *std::get<Macro*>(held_); }
  Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(held_); }
  Turn& turn() const { return *std::get<Turn*>(held_); }

  // Python's `is`: the same object; equal numbers below 257 count as such.
  bool same(const Value& other) const;

 private:
  Held held_;
};

struct Sequence {
  Flavour flavour = Flavour::list;
  Values items;
  int depth = 1;                        // of containers inside one another
  size_t next = 0;                      // of an iterator
  Int start = 0, stop = 0, step = 1;    // of a range
  std::string_view name = "generator";  // of an iterator's type
};

using Pairs = std::vector<std::pair<Value, Value>>;

struct Dict {
  Pairs items;  // in order; keys are hashable and differ
  int depth = 1;
};

struct Undefined {
  std::string hint;        // the whole message; if empty it follows from:
  std::string owner = {};  // "'dict object'", or nothing: a variable
  Value name = {};
  std::string message() const;
};

struct Space {
  Pairs items;
};

struct Turn {
  Values items;
  size_t next = 0;
  bool joiner = false;
};

// Arguments of a filter, test, method, function or macro.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime;

struct Callable {
  std::string_view name;
  Value self;  // of a method
  Value (*call)(Runtime& runtime, const Value& self, Arguments& arguments) = nullptr;
};

std::string_view type_name(const Value& value);  // "str", "NoneType", ...
std::string owner_name(const Value& value);      // as undefined's messages write it: "dict object"
int depth_of(const Value& value);                // 0 for what is no container
Value make_string(std::string text, bool markup = false);
const Value* find_key(const Dict& dict, std::string_view key);

}  // namespace lockstep::text::jinja
