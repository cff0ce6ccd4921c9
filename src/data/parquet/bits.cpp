#include "data/parquet/bits.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace lockstep::data::parquet {

static_assert(std::endian::native == std::endian::little, "values are read as they lie in the file");

void damaged_page(const std::string& where, const std::string& got) {
  throw FormatError({.what = "damaged Parquet page",
                     .where = where,
                     .got = got,
                     .attempt = "the file may be cut off or damaged: copy or download it again"});
}

uint64_t take_varint(std::string_view& bytes, const std::string& where) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) damaged_page(where, "an integer ends early");
    const auto byte = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  damaged_page(where, "an integer of more than 64 bits");
}

int64_t take_zigzag(std::string_view& bytes, const std::string& where) {
  const uint64_t value = take_varint(bytes, where);
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

uint32_t take_u32(std::string_view& bytes, const std::string& where) {
  uint32_t value = 0;
  if (bytes.size() < sizeof(value)) damaged_page(where, "a length ends early");
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

uint64_t bits_at(std::string_view bytes, uint64_t place, int width) {
  if (width == 0) return 0;
  const size_t first = place / 8;
  const int shift = static_cast<int>(place % 8);
  uint64_t low = 0;
  std::memcpy(&low, bytes.data() + first, std::min<size_t>(sizeof(low), bytes.size() - first));
  uint64_t value = low >> shift;
  if (shift + width > 64) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[first + 8])) << (64 - shift);
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

void HybridReader::start_run() {
  // An index into a dictionary of one value has no bits, and some writers then write no runs.
  if (width_ == 0 && bytes_.empty()) {
    repeats_ = 1;
    return;
  }
  while (repeats_ == 0 && literals_ == 0) {
    const uint64_t header = take_varint(bytes_, *where_);
    if (header & 1) {
      // The last group of a page may be cut after the values it needs.
      const uint64_t groups = header >> 1;
      const uint64_t wanted =
          groups > bytes_.size() && width_ > 0 ? bytes_.size() : groups * static_cast<uint64_t>(width_);
      packed_ = bytes_.substr(0, std::min<uint64_t>(wanted, bytes_.size()));
      bytes_.remove_prefix(packed_.size());
      literals_ = groups > UINT64_MAX / 8 ? UINT64_MAX : groups * 8;
      place_ = 0;
    } else {
      const auto size = static_cast<size_t>((width_ + 7) / 8);
      if (bytes_.size() < size) damaged_page(*where_, "a run ends early");
      value_ = 0;
      std::memcpy(&value_, bytes_.data(), size);
      bytes_.remove_prefix(size);
      repeats_ = header >> 1;
    }
  }
}

uint32_t HybridReader::literal() {
  const auto width = static_cast<uint64_t>(width_);
  if (width > 0 && place_ + width > packed_.size() * 8) damaged_page(*where_, "packed values end early");
  const auto value = static_cast<uint32_t>(bits_at(packed_, place_, width_));
  place_ += width;
  --literals_;
  return value;
}

}  // namespace lockstep::data::parquet
