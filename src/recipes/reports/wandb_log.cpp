#include "recipes/reports/wandb_log.h"

#include <zlib.h>

#include <algorithm>

namespace lockstep::recipes {

namespace {

constexpr uint64_t kBlock = 32768;
constexpr uint64_t kHead = 7;  // CRC-32, length in 16 bits, type
enum Type : char { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

uint32_t checksum(char type, std::string_view data) {
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(&type), 1);
  crc = crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
  return static_cast<uint32_t>(crc);
}

uint32_t number_at(std::string_view bytes, uint64_t at, int size) {
  uint32_t value = 0;
  for (int i = 0; i < size; ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + static_cast<uint64_t>(i)])) << (8 * i);
  return value;
}

}  // namespace

std::string wandb_log_header() {
  return std::string(":W&B\xE1\xBE\0", 7);
}

std::string wandb_log_record(std::string_view data, uint64_t position) {
  std::string out;
  bool first = true;
  do {
    uint64_t room = kBlock - (position + out.size()) % kBlock;
    if (room < kHead) {
      out.append(room, '\0');
      room = kBlock;
    }
    const std::string_view part = data.substr(0, std::min<uint64_t>(data.size(), room - kHead));
    data.remove_prefix(part.size());
    const char type = first ? (data.empty() ? kFull : kFirst) : (data.empty() ? kLast : kMiddle);
    const uint32_t crc = checksum(type, part);
    for (int i = 0; i < 4; ++i) out += static_cast<char>(crc >> (8 * i));
    out += static_cast<char>(part.size());
    out += static_cast<char>(part.size() >> 8);
    out += type;
    out += part;
    first = false;
  } while (!data.empty());
  return out;
}

std::vector<WandbLogRecord> read_wandb_log(std::string_view bytes) {
  std::vector<WandbLogRecord> records;
  const std::string header = wandb_log_header();
  if (!bytes.starts_with(header)) return records;
  std::string data;
  for (uint64_t at = header.size();;) {
    if (const uint64_t room = kBlock - at % kBlock; room < kHead) at += room;
    if (at + kHead > bytes.size()) return records;
    const uint32_t crc = number_at(bytes, at, 4), size = number_at(bytes, at + 4, 2);
    const char type = bytes[at + 6];
    at += kHead;
    if (at + size > bytes.size() || type < kFull || type > kLast) return records;
    const std::string_view part = bytes.substr(at, size);
    if (checksum(type, part) != crc) return records;
    at += size;
    if (type == kFull || type == kFirst) data.clear();
    data += part;
    if (type == kFull || type == kLast) records.push_back({.data = data, .end = at});
  }
}

}  // namespace lockstep::recipes
