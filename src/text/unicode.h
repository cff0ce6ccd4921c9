// Membership in the classes of text/unicode_tables.h.
#pragma once

#include <cstdint>
#include <span>

#include "text/unicode_tables.h"

namespace lockstep::text::unicode {

bool contains(std::span<const Range> sorted, uint32_t code);

inline bool is_white_space(uint32_t code) {
  return contains(kWhiteSpace, code);
}
inline bool is_numeric(uint32_t code) {
  return contains(kNumeric, code);
}
inline bool is_word(uint32_t code) {
  return contains(kWord, code);
}

}  // namespace lockstep::text::unicode
