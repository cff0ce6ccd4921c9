#include "data/parquet/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/error.h"
#include "data/parquet/convert.h"

namespace lockstep::data::parquet {

namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";

// A few bytes of run lengths can stand for any number of values, so a row has limits of its own.
constexpr int64_t kMaxRowValues = 1 << 24;
constexpr int64_t kMaxRowBytes = int64_t{1} << 29;

[[noreturn]] void damaged_file(const std::string& where, const std::string& got, const std::string& wanted) {
  throw FormatError({.what = "damaged Parquet file",
                     .where = where,
                     .got = got,
                     .wanted = wanted,
                     .attempt = "the file may be cut off or damaged: copy or download it again"});
}

[[noreturn]] void encrypted(const std::string& where) {
  throw FormatError({.what = "an encrypted Parquet file", .where = where, .attempt = "decrypt the file beforehand"});
}

std::string_view footer_of(const ByteSource& file, const std::string& where, std::vector<char>& room) {
  constexpr size_t kTail = 8;
  const size_t tail_bytes = std::min(kTail, file.size());
  const std::string_view tail = file.read(file.size() - tail_bytes, tail_bytes, room);
  if (tail.ends_with(kEncryptedMagic)) encrypted(where);
  if (file.size() < kMagic.size() + kTail || !tail.ends_with(kMagic))
    damaged_file(where, fmt::format("{} bytes", file.size()), "PAR1 at the end");
  uint32_t size = 0;
  std::memcpy(&size, tail.data(), sizeof(size));
  if (size > file.size() - kMagic.size() - kTail)
    damaged_file(where, fmt::format("a footer of {} bytes in a file of {}", size, file.size()),
                 "a footer inside the file");
  return file.read(file.size() - kTail - size, size, room);
}

}  // namespace

bool is_parquet(const ByteSource& file) {
  std::vector<char> room;
  const std::string_view begin = file.read(0, std::min(kMagic.size(), file.size()), room);
  return begin == kMagic || begin == kEncryptedMagic;
}

Reader::Reader(const ByteSource& file, std::string where) : file_(file), where_(std::move(where)) {
  std::vector<char> room;
  metadata_ = read_metadata(footer_of(file_, where_, room), where_);
  if (metadata_.encrypted) encrypted(where_);
  schema_ = make_schema(metadata_.schema, where_);
  check_metadata();
}

void Reader::check_metadata() {
  int64_t rows = 0;
  for (const RowGroup& group : metadata_.row_groups) {
    group_begin_.push_back(rows);
    if (group.num_rows < 0 || group.num_rows > metadata_.num_rows - rows)
      damaged_file(where_, fmt::format("a row group of {} rows", group.num_rows),
                   fmt::format("{} in all", metadata_.num_rows));
    rows += group.num_rows;
    if (group.columns.size() != schema_.columns.size())
      damaged_file(where_, fmt::format("a row group of {} columns", group.columns.size()),
                   fmt::format("{}", schema_.columns.size()));
  }
  if (rows != metadata_.num_rows)
    damaged_file(where_, fmt::format("{} rows in the row groups", rows), fmt::format("{}", metadata_.num_rows));
  group_begin_.push_back(rows);
}

void Reader::start_group(size_t group) {
  columns_.clear();
  for (size_t i = 0; i < schema_.columns.size(); ++i)
    columns_.push_back(std::make_unique<ColumnReader>(
        file_, schema_.columns[i], metadata_.row_groups[group].columns[i],
        fmt::format("{}: column {}, row group {}", where_, schema_.columns[i].path, group)));
  row_ = group_begin_[group];
  group_end_ = group_begin_[group + 1];
}

void Reader::seek(int64_t row) {
  const bool ahead = !columns_.empty() && row >= row_ && row < group_end_;
  if (!ahead) {
    columns_.clear();
    row_ = row;
    if (row == num_rows()) return;
    // The last group that begins at or before the row; one without rows begins where the next does.
    const auto after = std::upper_bound(group_begin_.begin(), group_begin_.end(), row);
    start_group(static_cast<size_t>(after - group_begin_.begin()) - 1);
  }
  while (row_ < row) {
    const int64_t before = row_;
    try {
      next();
    } catch (const DataError&) {
      if (row_ == before) throw;
      // It is the reader of that row who is to know.
    }
  }
}

OrderedJson Reader::next() {
  if (columns_.empty()) seek(row_);
  row_values_ = row_bytes_ = 0;
  problem_.clear();
  for (const auto& column : columns_)
    if (column->repetition() != 0)
      damaged_page(column->where(), column->repetition() < 0 ? fmt::format("no value for row {}", row_ + 1)
                                                             : "a row that begins inside a list");
  OrderedJson row = OrderedJson::object();
  auto& members = row.get_ref<OrderedJson::object_t&>();
  for (const Node& field : schema_.fields) members.emplace_back(field.name, value(field));
  ++row_;
  if (row_ == group_end_) {
    for (const auto& column : columns_)
      if (column->repetition() >= 0) damaged_page(column->where(), "more values than rows");
    columns_.clear();
  }
  if (!problem_.empty())
    throw DataError({.what = "a value that cannot be shown as JSON",
                     .where = fmt::format("{} row {}", where_, row_),
                     .got = problem_});
  return row;
}

void Reader::count(size_t bytes) {
  row_bytes_ += static_cast<int64_t>(bytes);
  if (++row_values_ > kMaxRowValues || row_bytes_ > kMaxRowBytes)
    throw FormatError({.what = "a Parquet row that is too large",
                       .where = fmt::format("{} row {}", where_, row_ + 1),
                       .wanted = fmt::format("at most {} values of {} bytes in all", kMaxRowValues, kMaxRowBytes)});
}

void Reader::note(const ColumnReader& column, const std::string& problem) {
  if (problem_.empty()) problem_ = fmt::format("column {}: {}", column.column().path, problem);
}

// Takes the one entry that every column below a null or empty value has.
void Reader::skip_nulls(const Node& node) {
  const int definition = columns_[node.begin]->definition();
  for (size_t i = node.begin; i < node.end; ++i) {
    if (columns_[i]->definition() != definition)
      damaged_page(columns_[i]->where(), "columns that disagree about a null");
    columns_[i]->skip_null();
    count(0);
  }
}

// Whether another item follows; all columns below must say the same.
bool Reader::continues(const Node& node) {
  const bool more = columns_[node.begin]->repetition() >= node.repetition;
  for (size_t i = node.begin; i < node.end; ++i) {
    const int repetition = columns_[i]->repetition();
    if (repetition > node.repetition || (repetition == node.repetition) != more)
      damaged_page(columns_[i]->where(), "columns that disagree about the length of a list");
  }
  return more;
}

OrderedJson Reader::value(const Node& node) {
  if (node.nullable && columns_[node.begin]->definition() < node.defined) return skip_nulls(node), nullptr;
  switch (node.kind) {
    case Node::Kind::leaf: return leaf(node);
    case Node::Kind::list: return list(node);
    case Node::Kind::map: return map(node);
    case Node::Kind::structure: break;
  }
  OrderedJson object = OrderedJson::object();
  auto& members = object.get_ref<OrderedJson::object_t&>();
  for (const Node& child : node.children) members.emplace_back(child.name, value(child));
  return object;
}

OrderedJson Reader::leaf(const Node& node) {
  ColumnReader& column = *columns_[node.begin];
  if (column.definition() != column.column().max_definition) damaged_page(column.where(), "a null where none may be");
  const std::string_view bytes = column.value();
  count(bytes.size());
  std::string problem;
  if (auto json = to_json(column.column(), bytes, problem)) return *std::move(json);
  note(column, problem);
  return nullptr;
}

OrderedJson Reader::list(const Node& node) {
  OrderedJson list = OrderedJson::array();
  if (columns_[node.begin]->definition() < node.filled) return skip_nulls(node), list;
  auto& items = list.get_ref<OrderedJson::array_t&>();
  do items.push_back(value(node.children[0]));
  while (continues(node));
  return list;
}

OrderedJson Reader::map(const Node& node) {
  OrderedJson map = OrderedJson::object();
  if (columns_[node.begin]->definition() < node.filled) return skip_nulls(node), map;
  auto& members = map.get_ref<OrderedJson::object_t&>();
  std::set<std::string> keys;
  do {
    const OrderedJson key = value(node.children[0]);
    std::string name = key.is_string() ? key.get<std::string>() : key.dump();
    if (!keys.insert(name).second) note(*columns_[node.begin], "a key twice in a map: " + name);
    members.emplace_back(std::move(name), node.children.size() > 1 ? value(node.children[1]) : OrderedJson());
  } while (continues(node));
  return map;
}

}  // namespace lockstep::data::parquet
