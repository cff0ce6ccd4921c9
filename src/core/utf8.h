// UTF-8, one character at a time. Invalid bytes are split as Rust's String::from_utf8_lossy and the Unicode standard
// (3.9, "substitution of maximal subparts") split them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

struct Utf8Char {
  uint32_t code = 0;  // meaningful when valid
  uint8_t size = 0;   // bytes it takes; for invalid bytes, those of the maximal subpart
  bool valid = false;
  bool cut = false;  // not valid, but more bytes could complete it
};

// The character at the beginning of `bytes`, which must not be empty.
Utf8Char read_utf8(std::string_view bytes);

// The same for text that is known to be UTF-8, at `place`; without checks.
inline uint32_t code_at(const char* text, size_t place, size_t& size) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[place + i])); };
  const uint32_t first = at(0);
  if (first < 0x80) return size = 1, first;
  if (first < 0xE0) return size = 2, (first & 0x1F) << 6 | (at(1) & 0x3F);
  if (first < 0xF0) return size = 3, (first & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
  return size = 4, (first & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
}

// Whether a character begins at this byte of UTF-8.
inline bool begins_character(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
}

// Appends the bytes of a code point, which must not be a surrogate.
void append_utf8(std::string& out, uint32_t code);

// Offset of the first byte that is not UTF-8; bytes.size() if there is none.
size_t valid_utf8_prefix(std::string_view bytes);

// Appends `bytes`, with one U+FFFD for every maximal subpart that is not UTF-8.
void append_lossy(std::string& out, std::string_view bytes);

}  // namespace lockstep
