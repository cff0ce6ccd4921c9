// What a Parquet file says about itself: its footer and the headers of its pages, read from Thrift's compact protocol.
// Source: github.com/apache/parquet-format, parquet.thrift.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::data::parquet {

enum class Physical : int32_t { boolean, int32, int64, int96, float32, float64, byte_array, fixed_bytes };
const char* physical_name(Physical physical);

enum class Repetition : int32_t { required, optional, repeated };

// The annotation of a type; the older ConvertedType is read as the same thing.
struct Logical {
  enum class Kind {
    none,
    string,
    map,
    list,
    enumeration,
    decimal,
    date,
    time,
    timestamp,
    integer,
    null,
    json,
    bson,
    uuid,
    float16,
    interval,
    other,  // newer than this reader, or VARIANT, GEOMETRY, GEOGRAPHY
  };
  enum class Unit { millis, micros, nanos };

  Kind kind = Kind::none;
  int32_t scale = 0, precision = 0;  // decimal
  Unit unit = Unit::millis;          // time, timestamp
  bool utc = false;
  int32_t bits = 64;  // integer
  bool is_signed = true;
};
const char* logical_name(Logical::Kind kind);

struct SchemaElement {
  std::string name;
  std::optional<int32_t> physical;  // none: a group
  int32_t type_length = 0;
  int32_t repetition = 0;
  int32_t num_children = 0;
  Logical logical;
};

struct ColumnChunk {
  bool encrypted = false, elsewhere = false;  // elsewhere: in another file
  int32_t physical = -1, codec = 0;
  int64_t num_values = -1;  // entries, nulls and empty lists too
  int64_t total_compressed_size = -1, data_page_offset = -1;
  std::optional<int64_t> dictionary_page_offset;
};

struct RowGroup {
  int64_t num_rows = -1;
  std::vector<ColumnChunk> columns;
};

struct FileMetadata {
  int64_t num_rows = -1;
  bool encrypted = false;
  std::string created_by;
  std::vector<SchemaElement> schema;  // depth first, the root first
  std::vector<RowGroup> row_groups;
  std::vector<std::pair<std::string, std::string>> key_values;
};

enum class PageType : int32_t { data, index, dictionary, data_v2 };

// Fields of both kinds of data page and of the dictionary page.
struct PageHeader {
  int32_t type = -1, uncompressed_size = -1, compressed_size = -1;
  std::optional<int32_t> crc;
  int32_t num_values = -1, encoding = -1;
  int32_t definition_encoding = -1, repetition_encoding = -1;  // data
  int32_t definition_bytes = -1, repetition_bytes = -1;        // data_v2
  bool is_compressed = true;                                   // data_v2
  bool has_details = false;                                    // the header of its own type was there
};

// FormatError naming `where`: no such struct. Numbers are as the file has them; the user of a number checks it.
FileMetadata read_metadata(std::string_view footer, const std::string& where);
// Also sets the number of bytes that the header takes.
PageHeader read_page_header(std::string_view bytes, const std::string& where, size_t& header_bytes);

}  // namespace lockstep::data::parquet
