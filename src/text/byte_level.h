// The alphabet with which byte-level tokenizers write bytes: one printable character for each of the 256.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

// U+0021..7E, A1..AC and AE..FF stand for themselves; the other 68 bytes, in increasing order, are U+0100 and on.
uint32_t byte_character(uint8_t byte);

// The bytes that `token` (valid UTF-8) stands for; its own bytes if one of its characters is not in the alphabet.
std::string spelled_bytes(std::string_view token);

// Whether every character of `token` is in the alphabet.
bool is_byte_spelling(std::string_view token);

}  // namespace lockstep::text
