// The state of one rendering: its limits, its position, the objects it owns, and how it fails.
#pragma once

#include <ctime>
#include <deque>
#include <optional>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"
#include "text/render_limits.h"
#include "text/span.h"

namespace lockstep::text::jinja {

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
  Runtime(std::string where, const RenderLimits& limits, std::optional<std::tm> now);

  int line = 1;  // of what is being evaluated

  // Everything that takes time which a template can influence is charged before it is done: as steps, or by the bytes
  // that are processed.
  void step(int64_t steps = 1) {
    if ((steps_left_ -= steps) < next_look_) look_at_limits();
  }
  void charge(size_t bytes);                                                 // memory of this size is filled
  void pass(size_t bytes) { step(static_cast<int64_t>(bytes / 128)); }       // copied, compared or skipped as a block
  void pass_slowly(size_t bytes) { step(static_cast<int64_t>(bytes / 4)); }  // looked at character by character
  [[noreturn]] void exhausted(const std::string& what) const;                // "many steps"
  [[noreturn]] void fail(const std::string& reason) const;                   // DataError: what Python would raise
  [[noreturn]] void unsupported(const std::string& construct) const;         // FormatError
  void need_defined(const Value& value) const;                               // DataError "'x' is undefined"
  std::string place() const;

  Value text(std::string utf8, bool markup = false);
  std::u32string codes(std::string_view utf8);  // to_codes
  void charge_codes(std::string_view utf8);     // of a function that calls to_codes
  Value row(Values items, Flavour flavour = Flavour::list);
  Value dict(Pairs items);
  Value undefined(std::string hint);
  Value undefined_variable(const std::string& name);
  Value undefined_member(const Value& owner, const Value& name);
  Value integer(Int value) const;  // DataError beyond kLargestInt

  std::tm now() const;  // the clock, unless one was given

  std::vector<const void*> printing;  // lists, dicts and namespaces that are being converted to text

  // Mutable objects belong to the rendering.
  std::deque<Space> spaces;
  std::deque<Turn> turns;
  std::deque<Macro> macros;

  // One more level of evaluation, for as long as the object lives.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.depth_ > runtime_.limits_.max_depth) {
        --runtime_.depth_;
        runtime_.exhausted("many levels");
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
  void look_at_limits();

  std::string where_;
  const RenderLimits limits_;
  int64_t steps_left_;
  int64_t next_look_ = 0;  // steps_left_ below which the limits are looked at
  size_t bytes_left_;
  std::optional<std::tm> now_;
  int depth_ = 0;
};

}  // namespace lockstep::text::jinja
