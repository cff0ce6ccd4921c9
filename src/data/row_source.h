// Where a Dataset's rows come from: text that is split into rows, or Parquet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/byte_window.h"
#include "data/parquet/reader.h"
#include "data/row.h"
#include "data/spool.h"

namespace lockstep::data {

class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t count_to(int64_t limit) = 0;  // the lesser of limit and the number of rows
  int64_t size() { return count_to(INT64_MAX); }
  virtual void seek(int64_t row) = 0;  // the row that next() returns; beyond the last one: none
  // False: no more rows. DataError: a bad row, which is skipped, or, with row.line 0, the file cannot be read.
  virtual bool next(Row& row) = 0;
  virtual std::string format() const = 0;                 // "JSON Lines"
  virtual std::string place(int64_t row_line) const = 0;  // "FILE line 3"
};

// JSON Lines, or one list of objects (the first character is '['), over bytes that must outlive the object. Rows that
// are not requested are located, not parsed. The offset of every 64th row is remembered, so that any row is found fast;
// a file of 10^9 rows takes 250 MB of memory.
class TextRows : public RowSource {
 public:
  TextRows(const ByteSource& bytes, std::string path);
  int64_t count_to(int64_t limit) override;  // reads on where the file was not read yet
  void seek(int64_t row) override;
  bool next(Row& row) override;
  std::string format() const override { return is_list_ ? "JSON, one list" : "JSON Lines"; }
  std::string place(int64_t line) const override;

 private:
  struct Cursor {
    size_t offset = 0;
    int64_t line = 1;
  };
  struct Piece {
    size_t begin = 0, end = 0;
    int64_t line = 0;
  };
  bool take(Piece& piece);
  bool take_line(Piece& piece);
  bool take_item(Piece& piece);
  void skip_space();
  void skip_item();
  [[noreturn]] void broken_list(const std::string& got, const std::string& wanted) const;

  ByteWindow bytes_;
  std::string path_;
  bool is_list_ = false;
  Cursor cursor_;
  int64_t row_ = 0;     // that cursor_ is at
  int64_t known_ = 0;   // rows seen so far
  int64_t total_ = -1;  // all rows, once the end was seen
  std::vector<Cursor> index_;
};

class ParquetRows : public RowSource {
 public:
  ParquetRows(const ByteSource& bytes, const std::string& path) : reader_(bytes, path), path_(path) {}
  int64_t count_to(int64_t limit) override { return std::min(limit, reader_.num_rows()); }
  void seek(int64_t row) override { reader_.seek(std::min(row, size())); }
  bool next(Row& row) override;
  std::string format() const override;
  std::string place(int64_t line) const override;
  const parquet::Schema& schema() const { return reader_.schema(); }

 private:
  parquet::Reader reader_;
  std::string path_;
};

// All rows of another source in a spool, for reading in any order; `rows` is used up.
class SpooledRows : public RowSource {
 public:
  SpooledRows(RowSource& rows, std::string path);
  int64_t count_to(int64_t limit) override { return text_->count_to(limit); }
  void seek(int64_t row) override { text_->seek(row), row_ = row; }
  bool next(Row& row) override;
  std::string format() const override { return format_; }
  std::string place(int64_t line) const override;

 private:
  std::string path_, format_;
  Spool spool_;
  std::map<int64_t, Fault> bad_;
  std::unique_ptr<TextRows> text_;
  int64_t row_ = 0;
};

}  // namespace lockstep::data
