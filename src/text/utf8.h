// UTF-8, one character at a time. A damaged place is cut as Rust's String::from_utf8_lossy and the Unicode standard
// (3.9, "substitution of maximal subparts") cut it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

struct Utf8Char {
  uint32_t code = 0;  // meaningful when valid
  uint8_t size = 0;   // bytes it takes; of a damaged place, those of its maximal subpart
  bool valid = false;
  bool cut = false;  // not valid, but more bytes could make it so
};

// The character at the beginning of `bytes`, which must not be empty.
Utf8Char read_utf8(std::string_view bytes);

// Offset of the first byte that is no UTF-8; bytes.size() when there is none.
size_t valid_utf8_prefix(std::string_view bytes);

// Appends `bytes` with one U+FFFD for every maximal subpart of what is no UTF-8.
void append_lossy(std::string& out, std::string_view bytes);

}  // namespace lockstep::text
