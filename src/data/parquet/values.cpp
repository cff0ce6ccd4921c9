#include "data/parquet/values.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "data/parquet/bits.h"
#include "data/parquet/delta.h"

namespace lockstep::data::parquet {

namespace {

class PlainReader : public ValueReader {
 public:
  explicit PlainReader(const PageValues& page)
      : bytes_(page.bytes), where_(page.where), width_(value_width(page.column)) {}
  std::string_view next() override {
    const size_t size = width_ != 0 ? width_ : take_u32(bytes_, where_);
    if (size > bytes_.size()) damaged_page(where_, "a value ends early");
    const std::string_view value = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return value;
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
  size_t width_;
};

class PlainBooleans : public ValueReader {
 public:
  explicit PlainBooleans(const PageValues& page) : bytes_(page.bytes), where_(page.where) {}
  std::string_view next() override {
    if (place_ / 8 >= bytes_.size()) damaged_page(where_, "booleans end early");
    value_ = static_cast<char>(bits_at(bytes_, place_++, 1));
    return {&value_, 1};
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
  uint64_t place_ = 0;
  char value_ = 0;
};

class RunLengthBooleans : public ValueReader {
 public:
  explicit RunLengthBooleans(const PageValues& page) {
    std::string_view bytes = page.bytes;
    const uint32_t size = take_u32(bytes, page.where);
    if (size > bytes.size()) damaged_page(page.where, "booleans end early");
    bits_ = HybridReader(bytes.substr(0, size), 1, page.where);
  }
  std::string_view next() override {
    value_ = static_cast<char>(bits_.next() & 1);
    return {&value_, 1};
  }

 private:
  HybridReader bits_;
  char value_ = 0;
};

class DictionaryReader : public ValueReader {
 public:
  explicit DictionaryReader(const PageValues& page) : dictionary_(page.dictionary), where_(page.where) {
    if (dictionary_ == nullptr) damaged_page(where_, "indices into a dictionary that is not there");
    if (page.bytes.empty()) return;  // of a page of nulls
    const int width = static_cast<uint8_t>(page.bytes[0]);
    if (width > 32) damaged_page(where_, fmt::format("dictionary indices of {} bits", width));
    indices_ = HybridReader(page.bytes.substr(1), width, where_);
    empty_ = false;
  }
  std::string_view next() override {
    if (empty_) damaged_page(where_, "fewer values than levels");
    const uint32_t index = indices_.next();
    if (index >= dictionary_->size())
      damaged_page(where_, fmt::format("index {} into a dictionary of {} values", index, dictionary_->size()));
    return (*dictionary_)[index];
  }

 private:
  const std::vector<std::string_view>* dictionary_;
  const std::string& where_;
  HybridReader indices_;
  bool empty_ = true;
};

// The first bytes of all values, then the second ones, and so on.
class SplitReader : public ValueReader {
 public:
  explicit SplitReader(const PageValues& page)
      : bytes_(page.bytes),
        where_(page.where),
        width_(value_width(page.column)),
        num_values_(page.bytes.size() / width_),
        value_(width_, '\0') {
    if (page.bytes.size() % width_ != 0) damaged_page(where_, "split values of unequal length");
  }
  std::string_view next() override {
    if (place_ == num_values_) damaged_page(where_, "fewer values than levels");
    for (size_t i = 0; i < width_; ++i) value_[i] = bytes_[i * num_values_ + place_];
    ++place_;
    return value_;
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
  size_t width_, num_values_, place_ = 0;
  std::string value_;
};

std::unique_ptr<ValueReader> choose(const PageValues& page) {
  const Physical type = page.column.physical;
  switch (static_cast<Encoding>(page.encoding)) {
    case Encoding::plain:
      if (type == Physical::boolean) return std::make_unique<PlainBooleans>(page);
      return std::make_unique<PlainReader>(page);
    case Encoding::plain_dictionary:
    case Encoding::rle_dictionary: return std::make_unique<DictionaryReader>(page);
    case Encoding::rle: return type == Physical::boolean ? std::make_unique<RunLengthBooleans>(page) : nullptr;
    case Encoding::byte_stream_split:
      return value_width(page.column) != 0 ? std::make_unique<SplitReader>(page) : nullptr;
    default: return make_delta_reader(page);
  }
}

}  // namespace

size_t value_width(const Column& column) {
  switch (column.physical) {
    case Physical::int32:
    case Physical::float32: return 4;
    case Physical::int64:
    case Physical::float64: return 8;
    case Physical::int96: return 12;
    case Physical::fixed_bytes: return static_cast<size_t>(column.type_length);
    default: return 0;
  }
}

std::unique_ptr<ValueReader> make_value_reader(const PageValues& page) {
  std::unique_ptr<ValueReader> reader = choose(page);
  if (!reader)
    throw FormatError({.what = "an encoding of Parquet values that cannot be read",
                       .where = page.where,
                       .got = fmt::format("encoding {} of {}", page.encoding, physical_name(page.column.physical))});
  return reader;
}

std::vector<std::string_view> read_dictionary(std::string_view bytes, int32_t num_values, const Column& column,
                                              const std::string& where) {
  if (column.physical == Physical::boolean) damaged_page(where, "a dictionary of booleans");
  PlainReader reader({.bytes = bytes, .encoding = 0, .column = column, .where = where});
  std::vector<std::string_view> values;
  for (int32_t i = 0; i < num_values; ++i) values.push_back(reader.next());
  return values;
}

}  // namespace lockstep::data::parquet
