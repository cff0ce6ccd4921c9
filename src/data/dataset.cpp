#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lockstep::data {

namespace {

int64_t parse_bound(const std::string& path, std::string_view inside, std::string_view text) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc() && end == text.data() + text.size()) return value;
  throw ConfigError(
      {.what = "malformed slice of a data set", .where = path, .got = std::string(inside), .wanted = "@[start:end]"});
}

// Python's rule for a bound that counts from the end.
int64_t from_start(int64_t bound, int64_t count) {
  return bound < 0 ? std::max<int64_t>(bound, -count) + count : bound;
}

}  // namespace

Dataset::Slice Dataset::split_slice(std::string& path) {
  const size_t open = path.rfind("@[");
  if (open == std::string::npos || !path.ends_with(']')) return {};
  const std::string inside = path.substr(open + 2, path.size() - open - 3);
  const std::string_view text = inside;
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) parse_bound(path, text, "no colon");
  Slice slice;
  if (colon > 0) slice.begin = parse_bound(path, text, text.substr(0, colon));
  if (colon + 1 < text.size()) slice.end = parse_bound(path, text, text.substr(colon + 1));
  path.resize(open);
  return slice;
}

Dataset Dataset::open(const std::string& path, const DatasetOptions& options) {
  Dataset data;
  data.path_ = path;
  const Slice slice = split_slice(data.path_);
  data.options_ = options;
  data.file_ = std::make_unique<FileBytes>(data.path_);
  data.in_order_ = parquet::is_parquet(data.file_->source());
  if (data.in_order_) {
    auto rows = std::make_unique<ParquetRows>(data.file_->source(), data.path_);
    for (const parquet::Node& field : rows->schema().fields)
      data.columns_.emplace_back(field.name, parquet::type_text(field, rows->schema()));
    data.source_ = std::move(rows);
  } else {
    data.source_ = std::make_unique<TextRows>(data.file_->source(), data.path_);
  }
  data.resolve(slice);
  // The first row tells whether there is any, without a look at the others.
  const int64_t known = data.end_ && data.begin_ >= *data.end_ ? data.begin_ : data.source_->count_to(data.begin_ + 1);
  if (known <= data.begin_)
    throw DataError({.what = "the data set is empty",
                     .where = path,
                     .got = std::to_string(data.source_->size()) + " rows in the file",
                     .wanted = "at least one row of JSON"});
  data.rewind();
  return data;
}

// Bounds that count from the end need the number of rows.
void Dataset::resolve(const Slice& slice) {
  const auto bound = [&](std::optional<int64_t> given) {
    return given && *given < 0 ? from_start(*given, source_->size()) : given;
  };
  begin_ = bound(slice.begin).value_or(0);
  end_ = bound(slice.end);
}

void Dataset::rewind() {
  position_ = begin_;
  source_->seek(begin_);
}

std::optional<Row> Dataset::next() {
  for (;;) {
    if (end_ && position_ >= *end_) return std::nullopt;
    Row row;
    ++position_;
    try {
      if (!source_->next(row)) return std::nullopt;
      row.number -= begin_;
      return row;
    } catch (const DataError& error) {
      if (row.line == 0) throw;
      note_bad(row.line, error);
    }
  }
}

std::vector<Row> Dataset::rest() {
  std::vector<Row> rows;
  while (auto row = next()) rows.push_back(*std::move(row));
  return rows;
}

int64_t Dataset::size() {
  const int64_t end = end_ ? source_->count_to(*end_) : source_->size();
  return end - begin_;
}

Row Dataset::row(int64_t number) {
  if (number < 0 || number >= size())
    throw DataError({.what = "no such row",
                     .where = path_,
                     .got = std::to_string(number),
                     .wanted = fmt::format("0 to {}", size() - 1)});
  if (in_order_ && begin_ + number != position_) {
    source_ = std::make_unique<SpooledRows>(*source_, path_);
    in_order_ = false;
  }
  if (begin_ + number != position_) source_->seek(begin_ + number);
  position_ = begin_ + number + 1;
  Row row;
  source_->next(row);
  row.number = number;
  return row;
}

void Dataset::note_bad(int64_t line, const DataError& error) {
  const Fault& fault = error.fault();
  if (bad_.contains(line)) return;
  if (static_cast<int64_t>(bad_.size()) >= options_.max_bad_rows) {
    if (options_.max_bad_rows == 0) throw error;
    Fault last = fault;
    last.what += fmt::format(" (after {} bad rows that were left out)", bad_.size());
    throw DataError(last);
  }
  std::string reason = fault.what;
  if (!fault.got.empty()) reason += ": " + fault.got;
  if (!fault.wanted.empty()) reason += "; wanted " + fault.wanted;
  bad_[line] = std::move(reason);
}

std::string Dataset::format() const {
  const Compression compression = file_->compression();
  return source_->format() +
         (compression == Compression::none ? "" : std::string(", ") + compression_name(compression));
}

std::vector<BadRow> Dataset::bad_rows() const {
  std::vector<BadRow> rows;
  for (const auto& [line, reason] : bad_) rows.push_back({.place = source_->place(line), .reason = reason});
  return rows;
}

}  // namespace lockstep::data
