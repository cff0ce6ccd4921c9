// One rendering: what it may spend, where it is, what it owns, and how it fails.
#pragma once

#include <ctime>
#include <deque>
#include <optional>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"
#include "text/span.h"

namespace lockstep::text::jinja {

// A template comes from a stranger: it must not hang, exhaust memory or overflow the stack. Beyond a limit:
// FormatError.
struct Limits {
  int64_t steps = 100'000'000;     // nodes evaluated, items looked at
  size_t bytes = size_t{1} << 30;  // of all strings and lists made, together
  int depth = 1200;                // of evaluation: nested expressions, blocks and macro calls
};
inline constexpr int kMaxContainerDepth = 400;
inline constexpr Int kLargestInt = Int{1} << 125;

struct Scope {
  explicit Scope(std::shared_ptr<Scope> above) : parent(std::move(above)) {}
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int32_t, Value>> variables;  // by number of the name
  Value* find(int32_t name);
  void set(int32_t name, Value value);
};

struct Macro {
  const Statement* source = nullptr;  // a macro, or a call or generation block as `caller`
  std::shared_ptr<Scope> scope;       // where it was defined
};

class Runtime {
 public:
  Runtime(std::string where, const Limits& limits, std::optional<std::tm> now)
      : where_(std::move(where)), limits_(limits), now_(now) {}

  int line = 1;  // of what is being evaluated

  void step(int64_t steps = 1) {
    if ((limits_.steps -= steps) < 0) exhausted("steps");
  }
  void charge(size_t bytes);  // before memory of this size is filled
  [[noreturn]] void exhausted(const std::string& what) const;
  [[noreturn]] void fail(const std::string& reason) const;            // DataError: what Python would raise
  [[noreturn]] void unsupported(const std::string& construct) const;  // FormatError
  void need_defined(const Value& value) const;                        // DataError "'x' is undefined"
  std::string place() const;

  Value text(std::string utf8, bool markup = false);
  Value row(Values items, Flavour flavour = Flavour::list);
  Value dict(Pairs items);
  Value undefined(std::string hint);
  Value undefined_variable(const std::string& name);
  Value undefined_member(const Value& owner, const Value& name);
  Value integer(Int value) const;  // DataError beyond kLargestInt

  std::tm now() const;  // the clock, unless one was given

  std::vector<const void*> printing;  // lists, dicts and namespaces whose texts are being made

  // What can change belongs to the rendering.
  std::deque<Space> spaces;
  std::deque<Turn> turns;
  std::deque<Macro> macros;

  // One more level of evaluation, for as long as the object lives.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.depth_ > runtime_.limits_.depth) {
        --runtime_.depth_;
        runtime_.exhausted("depth");
      }
    }
    ~Level() { --runtime_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  int checked_depth(int depth) const;

  std::string where_;
  Limits limits_;
  std::optional<std::tm> now_;
  int depth_ = 0;
};

}  // namespace lockstep::text::jinja
