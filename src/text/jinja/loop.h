// The `loop` variable of a for block.
#pragma once

#include <functional>

#include "text/jinja/value.h"

namespace lockstep::text::jinja {

struct Loop {
  std::shared_ptr<const Values> items;  // those known so far
  // Of a loop with a condition, while it runs: looks for the next item; false at the end. As in Python, the condition
  // is asked only when the item is needed.
  std::function<bool()> pull;
  int depth_of_items = 0;
  int64_t index0 = 0;
  int64_t depth0 = 0;  // of recursive loops
  bool has_changed_value = false;
  Values changed_value;                           // of the last loop.changed()
  std::function<std::string(const Value&)> body;  // of a recursive loop, while it runs
};

// A property of the loop (index, last, previtem ...); missing if there is none of this name.
Value loop_property(Runtime& runtime, Loop& loop, std::string_view name);

}  // namespace lockstep::text::jinja
