// data: rows out of files.
//
//   includes    core
//   memory      a Dataset owns the files it has open; the caller owns the Rows
//   threads     a Dataset belongs to one thread
//
// This header: rows of a data set. JSON Lines, JSON (one list of objects) or Parquet, the text also compressed by gzip,
// xz or zstd. The format follows from the file's bytes, not from its name. A bad row is reported with file and line.
//
//   memory   JSON text stays in the file, and so do Parquet's pages, until they are read: files may be larger than
//            memory. A file that is truncated while it is read is a DataError.
//            Compressed text is decompressed once, when the file is opened, and Parquet is converted to JSON Lines once
//            if its rows are needed out of order; both are kept in memory up to 64 MB and in an unnamed temporary file
//            beyond that.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/file_bytes.h"
#include "data/row.h"
#include "data/row_source.h"

namespace lockstep::data {

struct DatasetOptions {
  int64_t max_bad_rows = 0;  // bad rows that are skipped before the next one stops the run
};

struct BadRow {
  std::string place, reason;  // "FILE line 3"; one line of text
};

class Dataset {
 public:
  // Path of a file, optionally with "@[start:end]": a Python slice of rows, counting bad ones. Rows outside of it are
  // not checked. Blank lines are not rows; a byte order mark is skipped. DataError: missing, no row in the slice.
  // FormatError: damaged compression or Parquet. ConfigError: a malformed slice.
  static Dataset open(const std::string& path, const DatasetOptions& options = {});

  // The next good row of the slice, in the order of the file; nullopt after the last one.
  // DataError: a line that is no JSON object, invalid UTF-8, a key twice, Parquet values that JSON cannot hold, unless
  // max_bad_rows allows it; always: the file cannot be read further. FormatError: a file that is damaged beyond a row.
  std::optional<Row> next();
  void rewind();            // next() starts again; bad rows are not counted twice
  std::vector<Row> rest();  // all remaining rows of next()

  int64_t size();           // rows of the slice, bad ones included; reads JSON text once
  Row row(int64_t number);  // any row, in any order (next() continues after it). DataError if it is bad or missing

  // Runs use(), whose DataError marks the row as bad: it stops the run unless max_bad_rows allows it. True if the
  // row was used.
  template <class Use>
  bool accept(const Row& row, const Use& use) {
    try {
      use();
      return true;
    } catch (const DataError& error) {
      note_bad(row.line, error);
      return false;
    }
  }
  std::vector<BadRow> bad_rows() const;  // skipped so far, in the order of the file

  // For messages: "JSON Lines, gzip"; and, if the file contains them (Parquet), names and types of its columns.
  std::string format() const;
  const std::vector<std::pair<std::string, std::string>>& columns() const { return columns_; }
  const std::string& path() const { return path_; }                             // without the slice
  std::string where(const Row& row) const { return source_->place(row.line); }  // "FILE line N", "FILE row N" (Parquet)

 private:
  struct Slice {
    std::optional<int64_t> begin, end;
  };
  static Slice split_slice(std::string& path);
  void resolve(const Slice& slice);
  void note_bad(int64_t line, const DataError& error);

  std::string path_;
  DatasetOptions options_;
  std::vector<std::pair<std::string, std::string>> columns_;
  std::unique_ptr<FileBytes> file_;
  std::unique_ptr<RowSource> source_;
  bool in_order_ = false;               // the source can only be read in order
  int64_t begin_ = 0;                   // of the slice, in rows of the file
  std::optional<int64_t> end_;          // none: the file's last row
  int64_t position_ = 0;                // in rows of the file
  std::map<int64_t, std::string> bad_;  // line -> reason
};

// The value of `key`, which must be a string; DataError naming file, line, key, and the keys that exist.
std::string string_field(const Dataset& data, const Row& row, const std::string& key);
// Strings as they are; numbers as written. For labels.
std::string label_field(const Dataset& data, const Row& row, const std::string& key);
// A list of integers in [0, limit). DataError otherwise.
std::vector<int32_t> token_field(const Dataset& data, const Row& row, const std::string& key, int64_t limit);
// A list of 0 and 1. DataError otherwise.
std::vector<int32_t> mask_field(const Dataset& data, const Row& row, const std::string& key);

}  // namespace lockstep::data
