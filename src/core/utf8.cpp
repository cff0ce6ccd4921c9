#include "core/utf8.h"

#include <cstring>

namespace lockstep {

namespace {

// What may follow a first byte: how many bytes, and the range of the second, which is where overlong forms, surrogates
// and code points above U+10FFFF are kept out (Unicode, table 3-7).
struct Lead {
  int following;
  uint8_t low, high;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

Utf8Char read_utf8(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.following < 0) return {0, 1, false, false};
  uint32_t code = first & (0x3Fu >> lead.following);
  for (int i = 1; i <= lead.following; ++i) {
    const size_t place = static_cast<size_t>(i);
    if (place == bytes.size()) return {0, static_cast<uint8_t>(i), false, true};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (at(place) < low || at(place) > high) return {0, static_cast<uint8_t>(i), false, false};
    code = code << 6 | (at(place) & 0x3Fu);
  }
  return {code, static_cast<uint8_t>(lead.following + 1), true, false};
}

void append_utf8(std::string& out, uint32_t code) {
  const auto byte = [&](uint32_t bits) { out += static_cast<char>(bits); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xE0 | code >> 12);
    } else {
      byte(0xF0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3F));
    }
    byte(0x80 | (code >> 6 & 0x3F));
  }
  byte(0x80 | (code & 0x3F));
}

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t place = 0;
  while (place < bytes.size()) {
    // Eight bytes of ASCII at once.
    uint64_t word = 0;
    if (place + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + place, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        place += sizeof(word);
        continue;
      }
    }
    const Utf8Char next = read_utf8(bytes.substr(place));
    if (!next.valid) break;
    place += next.size;
  }
  return place;
}

void append_lossy(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    out += "\xEF\xBF\xBD";
    bytes.remove_prefix(read_utf8(bytes).size);
  }
}

}  // namespace lockstep
