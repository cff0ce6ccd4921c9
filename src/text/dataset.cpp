#include "text/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/fs.h"

namespace lockstep::text {

namespace {

struct Slice {
  std::optional<int64_t> begin, end;
};

// "FILE@[a:b]" -> FILE and the slice; anything else is a file name.
std::pair<std::string, Slice> split_path(const std::string& path) {
  const size_t open = path.rfind("@[");
  if (open == std::string::npos || !path.ends_with(']')) return {path, {}};
  const std::string inside = path.substr(open + 2, path.size() - open - 3);
  const size_t colon = inside.find(':');
  const auto bound = [&](const std::string& text) -> std::optional<int64_t> {
    if (text.empty()) return std::nullopt;
    int64_t value = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed == std::errc() && end == text.data() + text.size()) return value;
    throw ConfigError(
        {.what = "malformed slice of a data set", .where = path, .got = inside, .wanted = "@[start:end]"});
  };
  if (colon == std::string::npos) bound("no colon");
  return {path.substr(0, open), {bound(inside.substr(0, colon)), bound(inside.substr(colon + 1))}};
}

std::vector<std::pair<int64_t, std::string_view>> lines_with_text(std::string_view bytes) {
  std::vector<std::pair<int64_t, std::string_view>> lines;
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines.emplace_back(number, line);
  }
  return lines;
}

// Python's rule for the bounds of a slice.
int64_t clamp_bound(std::optional<int64_t> bound, int64_t fallback, int64_t count) {
  if (!bound) return fallback;
  const int64_t from_start = *bound < 0 ? std::max<int64_t>(*bound, -count) + count : *bound;
  return std::min(from_start, count);
}

// Collects top-level numbers that are no integers, in the spelling of the file.
class NumberTexts : public nlohmann::json_sax<Json> {
 public:
  explicit NumberTexts(std::map<std::string, std::string>& texts) : texts_(texts) {}
  bool number_float(double, const std::string& text) override {
    if (depth_ == 1) texts_[key_] = text;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) key_ = name;
    return true;
  }
  bool start_object(size_t) override { return ++depth_; }
  bool start_array(size_t) override { return ++depth_; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::map<std::string, std::string>& texts_;
  std::string key_;
  int64_t depth_ = 0;
};

Row parse_row(int64_t number, std::string_view line, const std::string& where) {
  Row row;
  row.line = number;
  try {
    parse_json(line, where);  // refuses what OrderedJson would read: a key twice
    row.json = OrderedJson::parse(line.begin(), line.end());
  } catch (const FormatError& error) {
    throw DataError(error.fault());
  }
  if (!row.json.is_object())
    throw DataError({.what = "a row is not a JSON object", .where = where, .got = std::string(row.json.type_name())});
  const auto is_float = [](const OrderedJson& value) { return value.is_number_float(); };
  if (std::any_of(row.json.begin(), row.json.end(), is_float)) {
    NumberTexts collector(row.number_texts);
    Json::sax_parse(line.begin(), line.end(), &collector);
  }
  return row;
}

const OrderedJson& field(const Dataset& data, const Row& row, const std::string& key) {
  if (const auto found = row.json.find(key); found != row.json.end()) return *found;
  std::vector<std::string> keys;
  for (const auto& item : row.json.items()) keys.push_back(item.key());
  throw DataError({.what = "a row lacks a key",
                   .where = data.where(row),
                   .got = fmt::format("keys {}", fmt::join(keys, ", ")),
                   .wanted = key});
}

[[noreturn]] void wrong_field(const Dataset& data, const Row& row, const std::string& key, const std::string& wanted) {
  throw DataError({.what = "a field has the wrong type",
                   .where = data.where(row) + ": " + key,
                   .got = row.json[key].dump(-1, ' ', true).substr(0, 100),
                   .wanted = wanted});
}

struct ListWords {
  const char* wanted;
  const char* bad_item;
};

// A list of integers in [0, limit).
std::vector<int32_t> integer_list(const Dataset& data, const Row& row, const std::string& key, int64_t limit,
                                  const ListWords& words) {
  const OrderedJson& list = field(data, row, key);
  if (!list.is_array()) wrong_field(data, row, key, words.wanted);
  std::vector<int32_t> values;
  values.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const bool valid = list[i].is_number_unsigned() && list[i].get<uint64_t>() < static_cast<uint64_t>(limit);
    if (!valid)
      throw DataError({.what = words.bad_item,
                       .where = fmt::format("{}: {}[{}]", data.where(row), key, i),
                       .got = list[i].dump().substr(0, 100),
                       .wanted = limit == 2 ? "0 or 1" : fmt::format("an integer from 0 to {}", limit - 1)});
    values.push_back(list[i].get<int32_t>());
  }
  return values;
}

}  // namespace

Dataset Dataset::read(const std::string& path) {
  const auto [file, slice] = split_path(path);
  const std::string bytes = fs::read_file(file);
  const auto lines = lines_with_text(bytes);
  const int64_t count = static_cast<int64_t>(lines.size());
  Dataset data;
  data.path_ = file;
  const int64_t end = clamp_bound(slice.end, count, count);
  for (int64_t i = clamp_bound(slice.begin, 0, count); i < end; ++i) {
    const auto& [number, line] = lines[static_cast<size_t>(i)];
    data.rows_.push_back(parse_row(number, line, file + " line " + std::to_string(number)));
  }
  if (data.rows_.empty())
    throw DataError({.what = "the data set is empty",
                     .where = path,
                     .got = std::to_string(count) + " rows in the file",
                     .wanted = "at least one row of JSON"});
  return data;
}

std::string string_field(const Dataset& data, const Row& row, const std::string& key) {
  const OrderedJson& value = field(data, row, key);
  if (!value.is_string()) wrong_field(data, row, key, "a string");
  return value.get<std::string>();
}

std::string label_field(const Dataset& data, const Row& row, const std::string& key) {
  const OrderedJson& value = field(data, row, key);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) wrong_field(data, row, key, "a string or a number");
  const auto written = row.number_texts.find(key);
  return written == row.number_texts.end() ? value.dump() : written->second;
}

std::vector<int32_t> token_field(const Dataset& data, const Row& row, const std::string& key, int64_t limit) {
  return integer_list(data, row, key, limit, {"a list of token ids", "not a token id"});
}

std::vector<int32_t> mask_field(const Dataset& data, const Row& row, const std::string& key) {
  return integer_list(data, row, key, 2, {"a list of 0 and 1", "a mask value is neither 0 nor 1"});
}

}  // namespace lockstep::text
