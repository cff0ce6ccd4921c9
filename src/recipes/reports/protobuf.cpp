#include "recipes/reports/protobuf.h"

namespace lockstep::recipes {

namespace {

std::optional<uint64_t> take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<MessageField> next_field(std::string_view& bytes) {
  std::string_view rest = bytes;
  const std::optional<uint64_t> key = take_varint(rest);
  if (!key) return std::nullopt;
  MessageField field{.number = static_cast<int>(*key >> 3)};
  const auto type = *key & 7;
  if (type == 0) {
    const std::optional<uint64_t> value = take_varint(rest);
    if (!value) return std::nullopt;
    field.value = *value;
  } else if (type == 1 || type == 5) {
    const size_t size = type == 1 ? 8 : 4;
    if (rest.size() < size) return std::nullopt;
    for (size_t i = 0; i < size; ++i)
      field.value |= static_cast<uint64_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
    rest.remove_prefix(size);
  } else if (type == 2) {
    const std::optional<uint64_t> size = take_varint(rest);
    if (!size || *size > rest.size()) return std::nullopt;
    field.text = rest.substr(0, *size);
    rest.remove_prefix(*size);
  } else {
    return std::nullopt;
  }
  bytes = rest;
  return field;
}

}  // namespace lockstep::recipes
