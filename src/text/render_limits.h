// What rendering a template may cost. A template comes from a stranger: it must not hang, exhaust memory or overflow
// the stack, however short it is. Beyond a limit: FormatError.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep::text {

struct RenderLimits {
  // Work of about 20 ns each: a node evaluated, an item looked at, 128 bytes copied or compared, 4 bytes decoded. The
  // default is about a second; a conversation of a megabyte takes less than a hundredth of it.
  int64_t max_steps = 50'000'000;
  size_t max_bytes = size_t{1} << 28;  // of all strings and lists made, together
  int max_depth = 1200;                // of evaluation: nested expressions, blocks and macro calls
  // When rendering stops at the latest, looked at about every millisecond; default: never.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

}  // namespace lockstep::text
