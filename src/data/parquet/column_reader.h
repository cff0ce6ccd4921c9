// One column of one row group, entry by entry: its levels, and its values page by page.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"
#include "data/parquet/bits.h"
#include "data/parquet/values.h"

namespace lockstep::data::parquet {

class ColumnReader {
 public:
  // The bytes of `file` and `column` must outlive the reader. FormatError naming `where`: encrypted, in another file, a
  // codec that is not there, offsets outside the file.
  ColumnReader(const ByteSource& file, const Column& column, const ColumnChunk& chunk, std::string where);
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  // Levels of the entry that comes next; a repetition of -1: there is none. FormatError: a damaged page.
  int repetition() {
    if (!peeked_) peek();
    return repetition_;
  }
  int definition() {
    if (!peeked_) peek();
    return definition_;
  }
  // Takes that entry. value(): it has one (its definition is the column's highest); the bytes are valid until the next.
  std::string_view value() {
    peeked_ = false;
    if (!values_) start_values();
    return values_->next();
  }
  void skip_null() { peeked_ = false; }

  const Column& column() const { return column_; }
  const std::string& where() const { return where_; }

 private:
  struct Bytes {  // of a page that was unpacked, or a view of the packed one
    std::unique_ptr<char[]> owned;
    std::string_view view;
  };

  void peek();
  bool next_page();
  PageHeader take_header();
  void start_data_page(const PageHeader& page, std::string_view body);
  void start_data_page_v2(const PageHeader& page, std::string_view body);
  void start_values();
  void start_dictionary(const PageHeader& page, std::string_view body);
  HybridReader take_levels(std::string_view& bytes, int max_level, int32_t encoding);
  Bytes unpacked(std::string_view packed, int64_t size) const;
  int level(HybridReader& levels, int max_level) const;

  const Column& column_;
  std::string where_;
  int32_t codec_;
  const ByteSource file_;
  size_t place_ = 0, end_ = 0;  // of the chunk's pages that are not begun
  int64_t left_;                // entries of the chunk in pages not begun
  int64_t in_page_ = 0;
  bool peeked_ = false;
  int repetition_ = -1, definition_ = 0;
  HybridReader repetitions_, definitions_;
  std::vector<char> packed_page_, packed_dictionary_;  // as the file has them, unless that is in memory
  Bytes page_, dictionary_page_;
  std::string_view
      value_bytes_;  // of the page; a page of nulls may have none, so they are looked at with its first value
  int32_t encoding_ = 0;
  bool has_dictionary_ = false;
  std::vector<std::string_view> dictionary_;
  std::unique_ptr<ValueReader> values_;
};

}  // namespace lockstep::data::parquet
