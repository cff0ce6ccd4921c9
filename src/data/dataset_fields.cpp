#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/dataset.h"

namespace lockstep::data {

namespace {

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
                   .got = row.json.at(key).dump(-1, ' ', true).substr(0, 100),
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
    // Integers of JSON are unsigned and those of Parquet signed; one above 2^63 is negative here.
    const auto value = list[i].is_number_integer() ? list[i].get<int64_t>() : -1;
    if (value < 0 || value >= limit)
      throw DataError({.what = words.bad_item,
                       .where = fmt::format("{}: {}[{}]", data.where(row), key, i),
                       .got = list[i].dump().substr(0, 100),
                       .wanted = limit == 2 ? "0 or 1" : fmt::format("an integer from 0 to {}", limit - 1)});
    values.push_back(static_cast<int32_t>(value));
  }
  return values;
}

}  // namespace

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

}  // namespace lockstep::data
