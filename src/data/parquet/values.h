// Values of one Parquet page, in every encoding that is in use. A value is the bytes it has in the PLAIN encoding
// without its length: 4 little-endian bytes of an int32, the text of a string, one byte of a boolean.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet/schema.h"

namespace lockstep::data::parquet {

enum class Encoding : int32_t {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  bit_packed = 4,
  delta_binary_packed = 5,
  delta_length_byte_array = 6,
  delta_byte_array = 7,
  rle_dictionary = 8,
  byte_stream_split = 9,
};

class ValueReader {
 public:
  virtual ~ValueReader() = default;
  // Valid until the next call. FormatError when the page holds no more.
  virtual std::string_view next() = 0;
};

// What a reader refers to and does not own: all must outlive it.
struct PageValues {
  std::string_view bytes;
  int32_t encoding = 0;
  const Column& column;
  const std::vector<std::string_view>* dictionary = nullptr;
  const std::string& where;
};

// FormatError: an encoding that is unknown, or that its type cannot have.
std::unique_ptr<ValueReader> make_value_reader(const PageValues& page);

// All values of a dictionary page, views of `bytes`.
std::vector<std::string_view> read_dictionary(std::string_view bytes, int32_t num_values, const Column& column,
                                              const std::string& where);

// Bytes of one value in the PLAIN encoding; 0 where they vary or are bits.
size_t value_width(const Column& column);

}  // namespace lockstep::data::parquet
