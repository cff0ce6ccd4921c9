#include "data/parquet/schema.h"

#include <fmt/format.h>

#include <set>

#include "core/error.h"
#include "core/utf8.h"

namespace lockstep::data::parquet {

namespace {

using Kind = Logical::Kind;

constexpr int kMaxDepth = 100;

// Whether values of the physical type can have the meaning.
bool fits(const Logical& logical, Physical physical, int32_t type_length) {
  const bool fixed = physical == Physical::fixed_bytes, bytes = physical == Physical::byte_array;
  const bool i32 = physical == Physical::int32, i64 = physical == Physical::int64;
  switch (logical.kind) {
    case Kind::string:
    case Kind::enumeration:
    case Kind::json:
    case Kind::bson: return bytes;
    case Kind::decimal: return i32 || i64 || bytes || fixed;
    case Kind::date: return i32;
    case Kind::time: return logical.unit == Logical::Unit::millis ? i32 : i64;
    case Kind::timestamp: return i64;
    case Kind::integer: return logical.bits == 64 ? i64 : i32;
    case Kind::uuid: return fixed && type_length == 16;
    case Kind::float16: return fixed && type_length == 2;
    case Kind::none:
    case Kind::null: return true;
    default: return false;
  }
}

class Builder {
 public:
  Builder(const std::vector<SchemaElement>& elements, const std::string& where) : elements_(elements), where_(where) {}

  Schema build() {
    if (elements_.empty()) fail("no schema", "", "at least a root");
    const SchemaElement& root = elements_[next_++];
    if (root.physical || root.num_children <= 0) fail(root.name, "no columns", "at least one");
    for (int32_t i = 0; i < root.num_children; ++i) schema_.fields.push_back(field({}, 0, 0, 1));
    check_names(schema_.fields, "a row");
    if (next_ != elements_.size())
      fail(root.name, fmt::format("{} schema elements, {} of them in the tree", elements_.size(), next_), "one tree");
    return std::move(schema_);
  }

 private:
  struct Place {
    std::string path;
    int definition = 0, repetition = 0, depth = 0;
  };

  [[noreturn]] void fail(const std::string& column, const std::string& got, const std::string& wanted) const {
    throw FormatError({.what = "a Parquet schema that cannot be read",
                       .where = where_ + (column.empty() ? "" : ": " + column),
                       .got = got,
                       .wanted = wanted});
  }

  void check_names(const std::vector<Node>& nodes, const std::string& path) const {
    std::set<std::string> names;
    for (const Node& node : nodes)
      if (!names.insert(node.name).second) fail(path, "two fields named " + node.name, "different names");
  }

  const SchemaElement& take(const std::string& path) {
    if (next_ == elements_.size()) fail(path, "the schema ends early", "all the children it promises");
    return elements_[next_++];
  }
  const SchemaElement& peek(const std::string& path) const {
    if (next_ == elements_.size()) fail(path, "the schema ends early", "all the children it promises");
    return elements_[next_];
  }

  // A field with its own repetition: null or not, or (without an annotation) a list.
  Node field(const std::string& parent, int definition, int repetition, int depth) {
    const SchemaElement& element = take(parent);
    Place place{parent.empty() ? element.name : parent + "." + element.name, definition, repetition, depth};
    if (valid_utf8_prefix(element.name) != element.name.size()) fail(parent, "a name that is not UTF-8", "UTF-8");
    const auto how = static_cast<Repetition>(element.repetition);
    if (element.repetition < 0 || element.repetition > 2)
      fail(place.path, fmt::format("repetition {}", element.repetition), "required, optional or repeated");
    if (how == Repetition::required) return value(element, place);
    ++place.definition;
    if (how == Repetition::optional) {
      Node node = value(element, place);
      node.nullable = true;
      node.defined = place.definition;
      return node;
    }
    ++place.repetition;
    Node item = value(element, place);
    return list_of(std::move(item), element.name, Node::Kind::list, place);
  }

  static Node list_of(Node item, const std::string& name, Node::Kind kind, const Place& place) {
    Node list{.kind = kind,
              .name = name,
              .filled = place.definition,
              .repetition = place.repetition,
              .begin = item.begin,
              .end = item.end};
    list.children.push_back(std::move(item));
    return list;
  }

  // A field's value, its own repetition apart.
  Node value(const SchemaElement& element, const Place& place) {
    if (place.depth > kMaxDepth) fail(place.path, "deeper nesting", fmt::format("at most {} levels", kMaxDepth));
    if (element.physical) return leaf(element, place);
    if (element.num_children <= 0) fail(place.path, "a group without fields", "at least one field");
    switch (element.logical.kind) {
      case Kind::list: return list(element, place);
      case Kind::map: return map(element, place);
      case Kind::none: return structure(element, place);
      default:
        fail(place.path, fmt::format("a group that is a {}", logical_name(element.logical.kind)),
             "a struct, LIST or MAP");
    }
  }

  Node structure(const SchemaElement& element, const Place& place) {
    Node node{.kind = Node::Kind::structure, .name = element.name, .begin = schema_.columns.size()};
    for (int32_t i = 0; i < element.num_children; ++i)
      node.children.push_back(field(place.path, place.definition, place.repetition, place.depth + 1));
    check_names(node.children, place.path);
    node.end = schema_.columns.size();
    return node;
  }

  // The repeated child of a LIST or MAP.
  const SchemaElement& repeated_child(const SchemaElement& element, Place& place) {
    const SchemaElement& child = take(place.path);
    if (element.num_children != 1 || child.repetition != static_cast<int32_t>(Repetition::repeated))
      fail(place.path, fmt::format("a {} of another form", logical_name(element.logical.kind)),
           "a group with one repeated field");
    place.path += "." + child.name;
    ++place.definition;
    ++place.repetition;
    ++place.depth;
    return child;
  }

  // Lists of three levels, and those of two that old writers left.
  Node list(const SchemaElement& element, Place place) {
    const SchemaElement& child = repeated_child(element, place);
    const auto is_item = [&] {
      if (child.physical || child.num_children != 1) return true;
      if (child.logical.kind == Kind::list || child.logical.kind == Kind::map) return true;
      if (child.name == "array" || child.name == element.name + "_tuple") return true;
      return peek(place.path).repetition == static_cast<int32_t>(Repetition::repeated);
    };
    Node item =
        is_item() ? value(child, place) : field(place.path, place.definition, place.repetition, place.depth + 1);
    return list_of(std::move(item), element.name, Node::Kind::list, place);
  }

  Node map(const SchemaElement& element, Place place) {
    const SchemaElement& child = repeated_child(element, place);
    if (child.physical || child.num_children < 1 || child.num_children > 2)
      fail(place.path, "a MAP of another form", "a repeated group of a key and a value");
    Node key = field(place.path, place.definition, place.repetition, place.depth + 1);
    if (key.kind != Node::Kind::leaf) fail(place.path, "a key that is no plain value", "a plain value");
    Node node = list_of(std::move(key), element.name, Node::Kind::map, place);
    if (child.num_children == 2)
      node.children.push_back(field(place.path, place.definition, place.repetition, place.depth + 1));
    node.end = schema_.columns.size();
    return node;
  }

  Node leaf(const SchemaElement& element, const Place& place) {
    if (*element.physical < 0 || *element.physical > static_cast<int32_t>(Physical::fixed_bytes))
      fail(place.path, fmt::format("type {}", *element.physical), "a type from 0 to 7");
    Column column{.path = place.path,
                  .physical = static_cast<Physical>(*element.physical),
                  .type_length = element.type_length,
                  .logical = element.logical,
                  .max_definition = place.definition,
                  .max_repetition = place.repetition};
    if (column.physical == Physical::fixed_bytes && column.type_length <= 0)
      fail(place.path, fmt::format("values of {} bytes", column.type_length), "at least 1");
    const bool huge = column.logical.kind == Kind::decimal && column.type_length > 64;
    if (!fits(column.logical, column.physical, column.type_length) || huge)
      throw FormatError(
          {.what = "a column has a type that cannot be read",
           .where = where_ + ": " + place.path,
           .got = fmt::format("{} as {}", physical_name(column.physical), logical_name(column.logical.kind)),
           .attempt = "leave the column out, or write it as text or numbers"});
    schema_.columns.push_back(std::move(column));
    return {.name = element.name, .begin = schema_.columns.size() - 1, .end = schema_.columns.size()};
  }

  const std::vector<SchemaElement>& elements_;
  const std::string& where_;
  size_t next_ = 0;
  Schema schema_;
};

std::string leaf_text(const Column& column) {
  const Logical& logical = column.logical;
  switch (logical.kind) {
    case Kind::string:
    case Kind::json: return "string";
    case Kind::enumeration: return "enum";
    case Kind::decimal: return fmt::format("decimal({}, {}) as text", logical.precision, logical.scale);
    case Kind::date: return "date as text";
    case Kind::time: return "time as text";
    case Kind::timestamp: return "timestamp as text";
    case Kind::integer: return fmt::format("{}int{}", logical.is_signed ? "" : "u", logical.bits);
    case Kind::null: return "null";
    case Kind::uuid: return "uuid as text";
    case Kind::float16: return "float16";
    default: break;
  }
  switch (column.physical) {
    case Physical::boolean: return "bool";
    case Physical::int32: return "int32";
    case Physical::int64: return "int64";
    case Physical::int96: return "timestamp as text";
    case Physical::float32: return "float";
    case Physical::float64: return "double";
    default: return "binary as base64";
  }
}

}  // namespace

Schema make_schema(const std::vector<SchemaElement>& elements, const std::string& where) {
  return Builder(elements, where).build();
}

std::string type_text(const Node& node, const Schema& schema) {
  switch (node.kind) {
    case Node::Kind::leaf: return leaf_text(schema.columns[node.begin]);
    case Node::Kind::list: return "list<" + type_text(node.children[0], schema) + ">";
    case Node::Kind::map:
      return "map<" + type_text(node.children[0], schema) + ", " +
             (node.children.size() > 1 ? type_text(node.children[1], schema) : std::string("null")) + ">";
    case Node::Kind::structure: break;
  }
  std::string fields;
  for (const Node& child : node.children)
    fields += (fields.empty() ? "" : ", ") + child.name + ": " + type_text(child, schema);
  return "struct<" + fields + ">";
}

}  // namespace lockstep::data::parquet
