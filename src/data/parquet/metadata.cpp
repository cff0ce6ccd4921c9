#include "data/parquet/metadata.h"

#include "core/error.h"
#include "data/parquet/thrift_reader.h"

namespace lockstep::data::parquet {

namespace {

using apache::thrift::protocol::T_STRING;
using apache::thrift::protocol::T_STRUCT;
using Type = ThriftReader::Type;
using Kind = Logical::Kind;

// Of the union LogicalType, by the number of its field.
Kind kind_of_logical(int16_t id) {
  switch (id) {
    case 1: return Kind::string;
    case 2: return Kind::map;
    case 3: return Kind::list;
    case 4: return Kind::enumeration;
    case 5: return Kind::decimal;
    case 6: return Kind::date;
    case 7: return Kind::time;
    case 8: return Kind::timestamp;
    case 10: return Kind::integer;
    case 11: return Kind::null;
    case 12: return Kind::json;
    case 13: return Kind::bson;
    case 14: return Kind::uuid;
    case 15: return Kind::float16;
    default: return Kind::other;
  }
}

Logical logical_of_converted(int32_t converted) {
  const auto integer = [](int32_t bits, bool is_signed) {
    return Logical{.kind = Kind::integer, .bits = bits, .is_signed = is_signed};
  };
  using Unit = Logical::Unit;
  switch (converted) {
    case 0: return {.kind = Kind::string};
    case 1:
    case 2: return {.kind = Kind::map};  // MAP_KEY_VALUE: what some writers put on the map itself
    case 3: return {.kind = Kind::list};
    case 4: return {.kind = Kind::enumeration};
    case 5: return {.kind = Kind::decimal};
    case 6: return {.kind = Kind::date};
    case 7: return {.kind = Kind::time, .unit = Unit::millis, .utc = true};
    case 8: return {.kind = Kind::time, .unit = Unit::micros, .utc = true};
    case 9: return {.kind = Kind::timestamp, .unit = Unit::millis, .utc = true};
    case 10: return {.kind = Kind::timestamp, .unit = Unit::micros, .utc = true};
    case 11:
    case 12:
    case 13:
    case 14: return integer(8 << (converted - 11), false);
    case 15:
    case 16:
    case 17:
    case 18: return integer(8 << (converted - 15), true);
    case 19: return {.kind = Kind::json};
    case 20: return {.kind = Kind::bson};
    case 21: return {.kind = Kind::interval};
    default: return {.kind = Kind::other};
  }
}

void read_unit(ThriftReader& in, Logical& logical) {
  in.structure([&](int16_t id, Type type) {
    if (id >= 1 && id <= 3) logical.unit = static_cast<Logical::Unit>(id - 1);
    in.skip(type);
  });
}

Logical read_logical(ThriftReader& in) {
  Logical logical;
  in.structure([&](int16_t member, Type type) {
    logical.kind = kind_of_logical(member);
    if (type != T_STRUCT) return in.skip(type);
    in.structure([&](int16_t id, Type field) {
      if (logical.kind == Kind::decimal && id == 1) return in.integer(field, logical.scale);
      if (logical.kind == Kind::decimal && id == 2) return in.integer(field, logical.precision);
      if (logical.kind == Kind::integer && id == 1) return in.integer(field, logical.bits);
      if (logical.kind == Kind::integer && id == 2) return in.boolean(field, logical.is_signed);
      const bool clock = logical.kind == Kind::time || logical.kind == Kind::timestamp;
      if (clock && id == 1) return in.boolean(field, logical.utc);
      if (clock && id == 2 && field == T_STRUCT) return read_unit(in, logical);
      in.skip(field);
    });
  });
  return logical;
}

SchemaElement read_schema_element(ThriftReader& in) {
  SchemaElement element;
  std::optional<int32_t> converted;
  std::optional<Logical> logical;
  int32_t scale = 0, precision = 0;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: return in.integer(type, element.physical);
      case 2: return in.integer(type, element.type_length);
      case 3: return in.integer(type, element.repetition);
      case 4: return in.string(type, element.name);
      case 5: return in.integer(type, element.num_children);
      case 6: return in.integer(type, converted);
      case 7: return in.integer(type, scale);
      case 8: return in.integer(type, precision);
      case 10:
        if (type == T_STRUCT) {
          logical = read_logical(in);
          return;
        }
        break;
    }
    in.skip(type);
  });
  if (!logical && converted) {
    logical = logical_of_converted(*converted);
    logical->scale = scale;
    logical->precision = precision;
  }
  element.logical = logical.value_or(Logical{});
  return element;
}

void read_column_metadata(ThriftReader& in, ColumnChunk& column) {
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: return in.integer(type, column.physical);
      case 4: return in.integer(type, column.codec);
      case 5: return in.integer(type, column.num_values);
      case 7: return in.integer(type, column.total_compressed_size);
      case 9: return in.integer(type, column.data_page_offset);
      case 11: return in.integer(type, column.dictionary_page_offset);
      default: return in.skip(type);
    }
  });
}

ColumnChunk read_column(ThriftReader& in) {
  ColumnChunk column;
  in.structure([&](int16_t id, Type type) {
    if (id == 3 && type == T_STRUCT) return read_column_metadata(in, column);
    if (id == 1) column.elsewhere = true;
    if (id == 8 || id == 9) column.encrypted = true;
    in.skip(type);
  });
  return column;
}

RowGroup read_row_group(ThriftReader& in) {
  RowGroup group;
  in.structure([&](int16_t id, Type type) {
    if (id == 1) return in.list(type, T_STRUCT, [&] { group.columns.push_back(read_column(in)); });
    if (id == 3) return in.integer(type, group.num_rows);
    in.skip(type);
  });
  return group;
}

void read_key_value(ThriftReader& in, FileMetadata& file) {
  auto& pair = file.key_values.emplace_back();
  in.structure([&](int16_t id, Type type) {
    if (id == 1) return in.string(type, pair.first);
    if (id == 2) return in.string(type, pair.second);
    in.skip(type);
  });
}

void read_data_page(ThriftReader& in, PageHeader& page) {
  page.has_details = true;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: return in.integer(type, page.num_values);
      case 2: return in.integer(type, page.encoding);
      case 3: return in.integer(type, page.definition_encoding);
      case 4: return in.integer(type, page.repetition_encoding);
      default: return in.skip(type);
    }
  });
}

void read_data_page_v2(ThriftReader& in, PageHeader& page) {
  page.has_details = true;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: return in.integer(type, page.num_values);
      case 4: return in.integer(type, page.encoding);
      case 5: return in.integer(type, page.definition_bytes);
      case 6: return in.integer(type, page.repetition_bytes);
      case 7: return in.boolean(type, page.is_compressed);
      default: return in.skip(type);
    }
  });
}

// Runs `read` and turns what the library throws into our error.
template <class Read>
void guarded(const std::string& where, const char* what, const Read& read) {
  try {
    read();
  } catch (const apache::thrift::TException& error) {
    throw FormatError({.what = what,
                       .where = where,
                       .got = error.what(),
                       .attempt = "the file may be cut off or damaged: copy or download it again"});
  }
}

}  // namespace

const char* physical_name(Physical physical) {
  constexpr const char* kNames[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                    "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  return kNames[static_cast<int>(physical)];
}

const char* logical_name(Logical::Kind kind) {
  constexpr const char* kNames[] = {"none", "STRING", "MAP",       "LIST",     "ENUM",    "DECIMAL",
                                    "DATE", "TIME",   "TIMESTAMP", "INTEGER",  "UNKNOWN", "JSON",
                                    "BSON", "UUID",   "FLOAT16",   "INTERVAL", "other"};
  return kNames[static_cast<int>(kind)];
}

FileMetadata read_metadata(std::string_view footer, const std::string& where) {
  FileMetadata file;
  guarded(where, "damaged Parquet footer", [&] {
    ThriftReader in(footer);
    in.structure([&](int16_t id, Type type) {
      switch (id) {
        case 2: return in.list(type, T_STRUCT, [&] { file.schema.push_back(read_schema_element(in)); });
        case 3: return in.integer(type, file.num_rows);
        case 4: return in.list(type, T_STRUCT, [&] { file.row_groups.push_back(read_row_group(in)); });
        case 5: return in.list(type, T_STRUCT, [&] { read_key_value(in, file); });
        case 6: return in.string(type, file.created_by);
        case 8: file.encrypted = true; break;
      }
      in.skip(type);
    });
  });
  return file;
}

PageHeader read_page_header(std::string_view bytes, const std::string& where, size_t& header_bytes) {
  PageHeader page;
  guarded(where, "damaged header of a Parquet page", [&] {
    ThriftReader in(bytes);
    in.structure([&](int16_t id, Type type) {
      const auto own = [&](PageType kind) { return type == T_STRUCT && page.type == static_cast<int32_t>(kind); };
      switch (id) {
        case 1: return in.integer(type, page.type);
        case 2: return in.integer(type, page.uncompressed_size);
        case 3: return in.integer(type, page.compressed_size);
        case 4: return in.integer(type, page.crc);
        case 5:
          if (own(PageType::data)) return read_data_page(in, page);
          break;
        case 7:
          if (own(PageType::dictionary)) return read_data_page(in, page);  // its first two fields are the same
          break;
        case 8:
          if (own(PageType::data_v2)) return read_data_page_v2(in, page);
          break;
      }
      in.skip(type);
    });
    header_bytes = in.consumed();
  });
  return page;
}

}  // namespace lockstep::data::parquet
