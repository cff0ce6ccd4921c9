#include "data/parquet/delta.h"

#include <algorithm>

#include "data/parquet/bits.h"

namespace lockstep::data::parquet {

DeltaIntegers::DeltaIntegers(std::string_view bytes, const std::string& where) : where_(&where), bytes_(bytes) {
  const uint64_t block = take_varint(bytes_, where);
  miniblocks_ = take_varint(bytes_, where);
  left_ = take_varint(bytes_, where);
  last_ = static_cast<uint64_t>(take_zigzag(bytes_, where));
  constexpr uint64_t kMaxBlock = uint64_t{1} << 31;
  if (block == 0 || block > kMaxBlock || miniblocks_ == 0 || block % miniblocks_ != 0 || block / miniblocks_ % 8 != 0)
    damaged_page(where, "an impossible size of a delta block");
  values_per_miniblock_ = block / miniblocks_;
}

void DeltaIntegers::start_block() {
  min_delta_ = static_cast<uint64_t>(take_zigzag(bytes_, *where_));
  if (bytes_.size() < miniblocks_) damaged_page(*where_, "a delta block ends early");
  widths_ = bytes_.substr(0, miniblocks_);
  bytes_.remove_prefix(miniblocks_);
}

void DeltaIntegers::start_miniblock() {
  if (widths_.empty()) start_block();
  width_ = static_cast<uint8_t>(widths_[0]);
  widths_.remove_prefix(1);
  if (width_ > 64) damaged_page(*where_, "delta values of more than 64 bits");
  const uint64_t size = values_per_miniblock_ / 8 * static_cast<uint64_t>(width_);
  if (bytes_.size() < size) damaged_page(*where_, "a delta block ends early");
  packed_ = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  in_miniblock_ = values_per_miniblock_;
  place_ = 0;
}

int64_t DeltaIntegers::next() {
  if (left_ == 0) damaged_page(*where_, "fewer values than levels");
  --left_;
  if (first_) {
    first_ = false;
    return static_cast<int64_t>(last_);
  }
  if (in_miniblock_ == 0) start_miniblock();
  last_ += min_delta_ + bits_at(packed_, place_, width_);
  place_ += static_cast<uint64_t>(width_);
  --in_miniblock_;
  return static_cast<int64_t>(last_);
}

// Walks the blocks without reading their values; every block takes at least one byte.
std::string_view DeltaIntegers::rest() const {
  DeltaIntegers ahead = *this;
  uint64_t left = ahead.left_ - (ahead.first_ && ahead.left_ > 0 ? 1 : 0);
  left -= std::min(left, ahead.in_miniblock_);
  while (left > 0) {
    ahead.start_miniblock();
    left -= std::min(left, ahead.values_per_miniblock_);
  }
  return ahead.bytes_;
}

namespace {

class DeltaIntegerReader : public ValueReader {
 public:
  explicit DeltaIntegerReader(const PageValues& page)
      : integers_(page.bytes, page.where), width_(value_width(page.column)) {}
  std::string_view next() override {
    value_ = integers_.next();
    return {reinterpret_cast<const char*>(&value_), width_};
  }

 private:
  DeltaIntegers integers_;
  size_t width_;
  int64_t value_ = 0;
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes.
class DeltaLengths {
 public:
  DeltaLengths(std::string_view bytes, const std::string& where)
      : where_(&where), lengths_(bytes, where), bytes_(lengths_.rest()) {}
  std::string_view next() {
    const int64_t length = lengths_.next();
    if (length < 0 || static_cast<uint64_t>(length) > bytes_.size()) damaged_page(*where_, "a string ends early");
    const std::string_view value = bytes_.substr(0, static_cast<size_t>(length));
    bytes_.remove_prefix(value.size());
    return value;
  }

 private:
  const std::string* where_;
  DeltaIntegers lengths_;
  std::string_view bytes_;
};

class DeltaLengthReader : public ValueReader {
 public:
  explicit DeltaLengthReader(const PageValues& page) : values_(page.bytes, page.where) {}
  std::string_view next() override { return values_.next(); }

 private:
  DeltaLengths values_;
};

// DELTA_BYTE_ARRAY: how much of the value before is kept, and what follows it.
class DeltaBytesReader : public ValueReader {
 public:
  explicit DeltaBytesReader(const PageValues& page)
      : where_(page.where),
        width_(value_width(page.column)),
        prefixes_(page.bytes, page.where),
        suffixes_(prefixes_.rest(), page.where) {}
  std::string_view next() override {
    const int64_t kept = prefixes_.next();
    if (kept < 0 || static_cast<uint64_t>(kept) > value_.size())
      damaged_page(where_, "a prefix longer than its string");
    value_.resize(static_cast<size_t>(kept));
    value_ += suffixes_.next();
    if (width_ != 0 && value_.size() != width_) damaged_page(where_, "a value of another length");
    return value_;
  }

 private:
  const std::string& where_;
  size_t width_;
  DeltaIntegers prefixes_;
  DeltaLengths suffixes_;
  std::string value_;
};

}  // namespace

std::unique_ptr<ValueReader> make_delta_reader(const PageValues& page) {
  const Physical type = page.column.physical;
  const bool integer = type == Physical::int32 || type == Physical::int64;
  switch (static_cast<Encoding>(page.encoding)) {
    case Encoding::delta_binary_packed: return integer ? std::make_unique<DeltaIntegerReader>(page) : nullptr;
    case Encoding::delta_length_byte_array:
      return type == Physical::byte_array ? std::make_unique<DeltaLengthReader>(page) : nullptr;
    case Encoding::delta_byte_array:
      return type == Physical::byte_array || type == Physical::fixed_bytes ? std::make_unique<DeltaBytesReader>(page)
                                                                           : nullptr;
    default: return nullptr;
  }
}

}  // namespace lockstep::data::parquet
