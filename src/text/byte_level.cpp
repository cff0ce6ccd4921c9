#include "text/byte_level.h"

#include <array>
#include <optional>

#include "core/utf8.h"

namespace lockstep::text {

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> kCharacters = [] {
  std::array<uint16_t, 256> characters{};
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    characters[static_cast<size_t>(byte)] = stands_for_itself(byte) ? static_cast<uint16_t>(byte) : next++;
  return characters;
}();

constexpr int kAlphabetEnd = 0x100 + 68;
constexpr std::array<int16_t, kAlphabetEnd> kBytes = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
  return bytes;
}();

std::optional<std::string> spelling(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Char next = read_utf8(token);
    if (!next.valid || next.code >= kAlphabetEnd || kBytes[next.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[next.code]);
    token.remove_prefix(next.size);
  }
  return bytes;
}

}  // namespace

uint32_t byte_character(uint8_t byte) {
  return kCharacters[byte];
}
std::string spelled_bytes(std::string_view token) {
  return spelling(token).value_or(std::string(token));
}
bool is_byte_spelling(std::string_view token) {
  return spelling(token).has_value();
}

}  // namespace lockstep::text
