// The escape sequence of a character in a JSON string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// `unit` is one of UTF-16: \" \\ \n \r \t \b \f, else \u00e9.
inline void append_json_escape(std::string& out, uint32_t unit) {
  constexpr std::string_view kShort = "\"\"\\\\\nn\rr\tt\bb\ff";  // the character, then its letter
  out += '\\';
  for (size_t i = 0; i < kShort.size(); i += 2)
    if (unit == static_cast<unsigned char>(kShort[i])) {
      out += kShort[i + 1];
      return;
    }
  out += 'u';
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[unit >> shift & 15];
}

}  // namespace lockstep
