// Rows of a JSON Lines file. A bad row stops with a DataError that names file, line and reason.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/json.h"

namespace lockstep::text {

struct Row {
  int64_t line = 0;                                      // from 1
  OrderedJson json;                                      // an object
  std::map<std::string, std::string> number_texts = {};  // its top-level numbers that are no integers, as written
};

class Dataset {
 public:
  // Path of a .jsonl file, optionally with "@[start:end]" (Python slice of rows; negative counts from the end).
  // DataError: missing, empty, a line of the slice that is no JSON object, invalid UTF-8. Blank lines are skipped, and
  // a byte order mark. ConfigError: a malformed slice.
  static Dataset read(const std::string& path);

  const std::vector<Row>& rows() const { return rows_; }
  const std::string& path() const { return path_; }
  // "FILE line N" for messages.
  std::string where(const Row& row) const { return path_ + " line " + std::to_string(row.line); }

 private:
  std::string path_;
  std::vector<Row> rows_;
};

// The value of `key`, which must be a string; DataError naming file, line, key, and the keys that exist.
std::string string_field(const Dataset& data, const Row& row, const std::string& key);
// Strings as they are; numbers as written. For labels.
std::string label_field(const Dataset& data, const Row& row, const std::string& key);
// A list of integers in [0, limit). DataError otherwise.
std::vector<int32_t> token_field(const Dataset& data, const Row& row, const std::string& key, int64_t limit);
// A list of 0 and 1. DataError otherwise.
std::vector<int32_t> mask_field(const Dataset& data, const Row& row, const std::string& key);

}  // namespace lockstep::text
