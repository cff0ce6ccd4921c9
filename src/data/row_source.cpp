#include "data/row_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace lockstep::data {

namespace {

constexpr int64_t kRowsPerEntry = 64;  // of the index

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// A FormatError of a row is the row's.
OrderedJson parse_object(std::string_view text, const std::string& where, std::map<std::string, std::string>& numbers) {
  OrderedJson json;
  try {
    json = parse_ordered_json(text, where, &numbers);
  } catch (const FormatError& error) {
    throw DataError(error.fault());
  }
  if (!json.is_object())
    throw DataError({.what = "a row is not a JSON object", .where = where, .got = std::string(json.type_name())});
  return json;
}

}  // namespace

TextRows::TextRows(const ByteSource& bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (bytes_.view(0, std::min(kByteOrderMark.size(), bytes_.size())) == kByteOrderMark) cursor_.offset = 3;
  const Cursor begin = cursor_;
  skip_space();
  if (cursor_.offset < bytes_.size() && bytes_.at(cursor_.offset) == '[') {
    is_list_ = true;
    ++cursor_.offset;
  } else {
    cursor_ = begin;
  }
  index_.push_back(cursor_);
}

std::string TextRows::place(int64_t line) const {
  return fmt::format("{} line {}", path_, line);
}

bool TextRows::take(Piece& piece) {
  if (row_ == total_) return false;
  const bool taken = is_list_ ? take_item(piece) : take_line(piece);
  if (!taken) {
    total_ = row_;
    return false;
  }
  known_ = std::max(known_, row_ + 1);
  if (++row_ == static_cast<int64_t>(index_.size()) * kRowsPerEntry) index_.push_back(cursor_);
  return true;
}

bool TextRows::take_line(Piece& piece) {
  while (cursor_.offset < bytes_.size()) {
    piece = {.begin = cursor_.offset, .end = bytes_.find('\n', cursor_.offset), .line = cursor_.line};
    cursor_.offset = piece.end;
    if (cursor_.offset < bytes_.size()) ++cursor_.offset, ++cursor_.line;
    if (!std::ranges::all_of(bytes_.view(piece.begin, piece.end), is_space)) return true;
  }
  return false;
}

void TextRows::broken_list(const std::string& got, const std::string& wanted) const {
  throw FormatError({.what = "invalid JSON",
                     .where = place(cursor_.line),
                     .got = got,
                     .wanted = wanted,
                     .attempt = "one list of objects, or one object per line"});
}

void TextRows::skip_space() {
  for (; cursor_.offset < bytes_.size() && is_space(bytes_.at(cursor_.offset)); ++cursor_.offset)
    if (bytes_.at(cursor_.offset) == '\n') ++cursor_.line;
}

// Passes over one value of the list: brackets and quotation marks say where it ends.
void TextRows::skip_item() {
  int64_t depth = 0;
  bool quoted = false;
  for (; cursor_.offset < bytes_.size(); ++cursor_.offset) {
    const char c = bytes_.at(cursor_.offset);
    if (c == '\n') ++cursor_.line;
    if (quoted) {
      if (c == '\\') ++cursor_.offset;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
      return;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  cursor_.offset = bytes_.size();
  broken_list("the list ends early", "a ] at its end");
}

bool TextRows::take_item(Piece& piece) {
  skip_space();
  const bool ends = cursor_.offset < bytes_.size() && bytes_.at(cursor_.offset) == ']';
  if (ends && row_ > 0) broken_list("a comma before ]", "a row");
  if (!ends) {
    piece = {.begin = cursor_.offset, .line = cursor_.line};
    skip_item();
    piece.end = cursor_.offset;
    if (piece.begin == piece.end) broken_list("no value", "a row");
    if (bytes_.at(cursor_.offset) == ',') return ++cursor_.offset, true;
    if (bytes_.at(cursor_.offset) != ']') broken_list("a } without its {", "a comma or ]");
  }
  const Cursor end = cursor_;
  ++cursor_.offset;
  skip_space();
  if (cursor_.offset != bytes_.size()) broken_list("something behind the list", "nothing");
  if (ends) return false;
  total_ = row_ + 1;
  cursor_ = end;
  return true;
}

int64_t TextRows::count_to(int64_t limit) {
  if (total_ < 0 && known_ < limit) {
    const int64_t row = row_;
    const Cursor cursor = cursor_;
    seek(limit);
    row_ = row;
    cursor_ = cursor;
  }
  return std::min(limit, total_ < 0 ? known_ : total_);
}

void TextRows::seek(int64_t row) {
  const int64_t entry = std::min(row / kRowsPerEntry, static_cast<int64_t>(index_.size()) - 1);
  if (row < row_ || entry * kRowsPerEntry > row_) {
    row_ = entry * kRowsPerEntry;
    cursor_ = index_[static_cast<size_t>(entry)];
  }
  for (Piece piece; row_ < row && take(piece);) continue;
}

bool TextRows::next(Row& row) {
  Piece piece;
  row = {.number = row_};
  if (!take(piece)) return false;
  row.line = piece.line;
  row.json = parse_object(bytes_.view(piece.begin, piece.end), place(piece.line), row.number_texts);
  return true;
}

std::string ParquetRows::format() const {
  const std::string& writer = reader_.metadata().created_by;
  const size_t groups = reader_.metadata().row_groups.size();
  return fmt::format("Parquet, {} row group{}{}", groups, groups == 1 ? "" : "s",
                     writer.empty() ? "" : ", written by " + writer);
}

std::string ParquetRows::place(int64_t line) const {
  return fmt::format("{} row {}", path_, line);
}

std::string SpooledRows::place(int64_t line) const {
  return fmt::format("{} row {}", path_, line);
}

bool ParquetRows::next(Row& row) {
  const int64_t number = reader_.position();
  row = {.number = number};
  if (number == reader_.num_rows()) return false;
  try {
    row.json = reader_.next();
  } catch (const DataError&) {
    if (reader_.position() > number) row.line = number + 1;
    throw;
  }
  row.line = number + 1;
  return true;
}

SpooledRows::SpooledRows(RowSource& rows, std::string path) : path_(std::move(path)), format_(rows.format()) {
  rows.seek(0);
  Row row;
  for (;;) {
    try {
      if (!rows.next(row)) break;
      spool_.append(json_text(row.json) + "\n");
    } catch (const DataError& error) {
      if (row.line == 0) throw;
      bad_[row.number] = error.fault();
      spool_.append("null\n");  // holds the place
    }
  }
  text_ = std::make_unique<TextRows>(spool_.source(), path_);
}

bool SpooledRows::next(Row& row) {
  const int64_t number = row_;
  if (number < size()) ++row_;
  if (const auto bad = bad_.find(number); bad != bad_.end()) {
    text_->seek(number + 1);
    row = {.number = number, .line = number + 1};
    throw DataError(bad->second);
  }
  return text_->next(row);
}

}  // namespace lockstep::data
