// A piece of a text: bytes [begin, end).
#pragma once

#include <cstddef>

namespace lockstep::text {

struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

}  // namespace lockstep::text
