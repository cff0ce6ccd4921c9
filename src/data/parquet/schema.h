// The shape of a Parquet file's rows: columns of plain values, and the tree of lists, maps and structs they hang on.
// Source: parquet-format, LogicalTypes.md (with its rules for files of old writers); repetition and definition levels
// as in Dremel (VLDB 2010).
#pragma once

#include <string>
#include <vector>

#include "data/parquet/metadata.h"

namespace lockstep::data::parquet {

struct Column {
  std::string path;  // "messages.list.element.role"
  Physical physical = Physical::byte_array;
  int32_t type_length = 0;  // bytes of a fixed_bytes value
  Logical logical;
  int max_definition = 0, max_repetition = 0;
};

// A value of a row. Entries of its columns with a definition level below `defined` are null (if it may be null); those
// of a list or map below `filled` are empty.
struct Node {
  enum class Kind { leaf, structure, list, map };

  Kind kind = Kind::leaf;
  std::string name;
  bool nullable = false;
  int defined = 0;
  int filled = 0, repetition = 0;  // list, map: levels of an item
  size_t begin = 0, end = 0;       // columns below; a leaf's own is begin
  std::vector<Node> children;      // list: the item; map: key and, if any, value
};

struct Schema {
  std::vector<Column> columns;
  std::vector<Node> fields;  // of a row, in order
};

// FormatError naming `where` and column: no tree, nesting beyond 100, two fields of one name, a type that cannot be
// shown as JSON.
Schema make_schema(const std::vector<SchemaElement>& elements, const std::string& where);

// "list<struct<role: string, content: string>>", for people.
std::string type_text(const Node& node, const Schema& schema);

}  // namespace lockstep::data::parquet
