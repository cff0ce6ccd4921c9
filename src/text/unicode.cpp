#include "text/unicode.h"

#include <algorithm>

namespace lockstep::text::unicode {

bool contains(std::span<const Range> sorted, uint32_t code) {
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), code,
                                      [](uint32_t value, const Range& range) { return value < range.first; });
  return after != sorted.begin() && code <= (after - 1)->last;
}

}  // namespace lockstep::text::unicode
