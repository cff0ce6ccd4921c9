// Messages of Protocol Buffers (proto3), written field by field, and the fields of one that was written.
// Source: https://protobuf.dev/programming-guides/encoding
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::recipes {

class Message {
 public:
  Message& integer(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& real32(int field, float value) {
    key(field, 5);
    fixed(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void fixed(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

struct MessageField {
  int number = 0;
  uint64_t value = 0;     // of an integer or a fixed number
  std::string_view text;  // of what has a length
};

// Takes the first field off the message; nullopt at its end, or where it is damaged, which then stays in `bytes`.
std::optional<MessageField> next_field(std::string_view& bytes);

}  // namespace lockstep::recipes
