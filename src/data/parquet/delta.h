// The DELTA encodings of Parquet: integers as differences, strings as lengths and shared prefixes.
#pragma once

#include "data/parquet/values.h"

namespace lockstep::data::parquet {

// DELTA_BINARY_PACKED, one value at a time: a block of zero differences takes a few bytes whatever its length.
class DeltaIntegers {
 public:
  // Takes the header from the front of `bytes`.
  DeltaIntegers(std::string_view bytes, const std::string& where);
  int64_t next();
  // What follows the integers, in `bytes` as they were given.
  std::string_view rest() const;

 private:
  void start_block();
  void start_miniblock();

  const std::string* where_;
  std::string_view bytes_;
  uint64_t miniblocks_ = 0, values_per_miniblock_ = 0, left_ = 0;
  uint64_t last_ = 0, min_delta_ = 0;
  bool first_ = true;
  std::string_view widths_;  // of the miniblocks of this block that are not begun
  std::string_view packed_;  // of this miniblock
  int width_ = 0;
  uint64_t in_miniblock_ = 0, place_ = 0;
};

std::unique_ptr<ValueReader> make_delta_reader(const PageValues& page);

}  // namespace lockstep::data::parquet
