// Integers in a Parquet page: varints, and the hybrid of run lengths and packed bits (levels, dictionary indices,
// booleans).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data::parquet {

// FormatError: damaged page of the place named.
[[noreturn]] void damaged_page(const std::string& where, const std::string& got);

// Takes a varint of at most 64 bits from the front of `bytes`.
uint64_t take_varint(std::string_view& bytes, const std::string& where);
int64_t take_zigzag(std::string_view& bytes, const std::string& where);
// Four bytes, little endian, from the front.
uint32_t take_u32(std::string_view& bytes, const std::string& where);

// `width` (at most 64) bits from bit `place` on, least significant first; the caller has checked that they are there.
uint64_t bits_at(std::string_view bytes, uint64_t place, int width);

// A run of 2^31 equal values takes six bytes, so values come one at a time.
class HybridReader {
 public:
  HybridReader() = default;
  // `where` must outlive the reader. width: 0 to 32.
  HybridReader(std::string_view bytes, int width, const std::string& where)
      : bytes_(bytes), width_(width), where_(&where) {}
  uint32_t next() {
    if (repeats_ == 0 && literals_ == 0) start_run();
    if (repeats_ > 0) return --repeats_, value_;
    return literal();
  }

 private:
  void start_run();
  uint32_t literal();

  std::string_view bytes_, packed_;
  int width_ = 0;
  const std::string* where_ = nullptr;
  uint64_t repeats_ = 0, literals_ = 0, place_ = 0;  // place_: bits of packed_ read
  uint32_t value_ = 0;
};

}  // namespace lockstep::data::parquet
