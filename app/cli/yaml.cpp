#include "cli/yaml.h"

#include <yaml.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/fs.h"

namespace lockstep::cli {

namespace {

class Document {
 public:
  Document(std::string_view text, const std::string& where) : where_(where) {
    if (yaml_parser_initialize(&parser_) == 0) throw ResourceError({.what = "out of memory", .where = where});
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    if (yaml_parser_load(&parser_, &document_) != 0) return;
    const std::string problem = parser_.problem == nullptr ? "" : parser_.problem;
    const yaml_mark_t mark = parser_.problem_mark;
    yaml_parser_delete(&parser_);
    fail("not YAML", mark, problem.c_str());
  }
  ~Document() {
    yaml_document_delete(&document_);
    yaml_parser_delete(&parser_);
  }
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  OrderedJson value() {
    yaml_node_t* root = yaml_document_get_root_node(&document_);
    OrderedJson result = root == nullptr ? OrderedJson() : value_of(*root, 0);
    yaml_document_t next;
    if (yaml_parser_load(&parser_, &next) == 0) fail("not YAML", parser_.problem_mark, parser_.problem);
    const bool several = yaml_document_get_root_node(&next) != nullptr;
    yaml_document_delete(&next);
    if (several) fail("more than one YAML document", parser_.mark, nullptr);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const yaml_mark_t& mark, const char* got) const {
    throw FormatError(
        {.what = what, .where = where_ + ", line " + std::to_string(mark.line + 1), .got = got == nullptr ? "" : got});
  }

  yaml_node_t& node(int index) { return *yaml_document_get_node(&document_, index); }

  OrderedJson value_of(const yaml_node_t& node, int depth) {
    if (depth > kMaxYamlDepth) fail("YAML nested too deeply", node.start_mark, nullptr);
    if (++nodes_ > kMaxYamlNodes) fail("YAML with too many values", node.start_mark, nullptr);
    switch (node.type) {
      case YAML_SCALAR_NODE: return scalar(node);
      case YAML_SEQUENCE_NODE: return sequence(node, depth);
      case YAML_MAPPING_NODE: return mapping(node, depth);
      default: return nullptr;
    }
  }

  void require_tag(const yaml_node_t& node, std::string_view usual) const {
    const std::string tag = reinterpret_cast<const char*>(node.tag);
    if (tag != usual) fail("a YAML tag", node.start_mark, tag.c_str());
  }

  OrderedJson sequence(const yaml_node_t& node, int depth) {
    require_tag(node, YAML_SEQ_TAG);
    OrderedJson list = OrderedJson::array();
    for (const auto* item = node.data.sequence.items.start; item != node.data.sequence.items.top; ++item)
      list.push_back(value_of(this->node(*item), depth + 1));
    return list;
  }

  OrderedJson mapping(const yaml_node_t& node, int depth) {
    require_tag(node, YAML_MAP_TAG);
    OrderedJson object = OrderedJson::object();
    for (const auto* pair = node.data.mapping.pairs.start; pair != node.data.mapping.pairs.top; ++pair) {
      const yaml_node_t& key = this->node(pair->key);
      if (key.type != YAML_SCALAR_NODE) fail("a key that is no text", key.start_mark, nullptr);
      const std::string name = text_of(key);
      if (name == "<<") fail("a merge key", key.start_mark, "<<");
      if (object.contains(name)) fail("a key twice", key.start_mark, name.c_str());
      object[name] = value_of(this->node(pair->value), depth + 1);
    }
    return object;
  }

  static std::string text_of(const yaml_node_t& node) {
    return std::string(reinterpret_cast<const char*>(node.data.scalar.value), node.data.scalar.length);
  }

  OrderedJson scalar(const yaml_node_t& node) const {
    require_tag(node, YAML_STR_TAG);
    const std::string text = text_of(node);
    if (node.data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return text;
    std::string small = text;
    for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (small.empty() || small == "~" || small == "null") return nullptr;
    if (small == "true" || small == "yes" || small == "on") return true;
    if (small == "false" || small == "no" || small == "off") return false;
    if (small.ends_with(".inf") || small == ".nan")
      fail("a number that JSON does not have", node.start_mark, text.c_str());
    const auto number = number_of(text);
    return number ? *number : OrderedJson(text);
  }

  static std::optional<OrderedJson> number_of(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    const size_t first = text.starts_with('-') ? 1 : 0;
    if (text.size() == first || (std::isdigit(static_cast<unsigned char>(text[first])) == 0 && text[first] != '.'))
      return std::nullopt;
    int64_t integer = 0;
    const char* end = text.data() + text.size();
    if (const auto read = std::from_chars(text.data(), end, integer); read.ec == std::errc() && read.ptr == end) {
      const bool padded = text.size() > first + 1 && text[first] == '0';  // octal in YAML 1.1, decimal in 1.2
      return padded ? std::nullopt : std::optional<OrderedJson>(integer);
    }
    double real = 0;
    const auto read = std::from_chars(text.data(), end, real);
    if (read.ec != std::errc() || read.ptr != end || !std::isfinite(real)) return std::nullopt;
    return OrderedJson(real);
  }

  const std::string& where_;
  yaml_parser_t parser_ = {};
  yaml_document_t document_ = {};
  int nodes_ = 0;
};

}  // namespace

OrderedJson parse_yaml(std::string_view text, const std::string& where) {
  return Document(text, where).value();
}

OrderedJson read_yaml(const std::string& path) {
  const std::string text = fs::read_file(path);
  if (text.size() > kMaxJsonFileBytes)
    throw FormatError({.what = "the file is too large", .where = path, .got = std::to_string(text.size()) + " bytes"});
  return parse_yaml(text, path);
}

}  // namespace lockstep::cli
