// Rows of a Parquet file, in order, as JSON objects with the columns in the order of the schema. At any time one page
// of every column is unpacked, however long the file is.
//   read      what pandas, pyarrow, Hugging Face datasets and Spark write: all physical types, lists, maps and structs
//   in
//             any nesting; pages v1 and v2; PLAIN, dictionary, RLE, DELTA_* and BYTE_STREAM_SPLIT; none, SNAPPY, GZIP,
//             ZSTD
//   refused   by a FormatError that names it: other codecs, encryption, BIT_PACKED levels, INTERVAL, VARIANT, GEOMETRY
// Values become JSON as parquet/convert.h says; a map is an object (its keys as text), or null where it is null.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "data/byte_source.h"
#include "data/parquet/column_reader.h"
#include "data/parquet/schema.h"

namespace lockstep::data::parquet {

bool is_parquet(const ByteSource& file);

class Reader {
 public:
  // The bytes of `file` must outlive the reader; `where` names it in errors. FormatError: not Parquet, cut off,
  // damaged, encrypted.
  Reader(const ByteSource& file, std::string where);

  int64_t num_rows() const { return metadata_.num_rows; }
  int64_t position() const { return row_; }  // of the row that next() gives
  void seek(int64_t row);                    // 0 to num_rows(); rows of the same row group before it are read past

  // The row at position(), which must be below num_rows(). FormatError: a damaged file. DataError: a row whose values
  // are no JSON (a string that is no UTF-8, a date beyond the calendar, a key twice in a map); the next row can be
  // read. DataError with position() unchanged: the file cannot be read.
  OrderedJson next();

  const Schema& schema() const { return schema_; }
  const FileMetadata& metadata() const { return metadata_; }

 private:
  void check_metadata();
  void start_group(size_t group);
  OrderedJson value(const Node& node);
  OrderedJson leaf(const Node& node);
  OrderedJson list(const Node& node);
  OrderedJson map(const Node& node);
  bool continues(const Node& node);
  void skip_nulls(const Node& node);
  void count(size_t bytes);
  void note(const ColumnReader& column, const std::string& problem);

  const ByteSource file_;
  std::string where_;
  FileMetadata metadata_;
  Schema schema_;
  std::vector<int64_t> group_begin_;                    // first row of every row group, and the number of rows
  std::vector<std::unique_ptr<ColumnReader>> columns_;  // of the group that row_ lies in, once a row was asked for
  int64_t row_ = 0, group_end_ = 0;
  int64_t row_values_ = 0, row_bytes_ = 0;
  std::string problem_;  // the first of the row
};

}  // namespace lockstep::data::parquet
