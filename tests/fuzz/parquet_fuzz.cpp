// A Parquet file: rows read in order, and from the middle, are the same; every refusal is a typed error; a few bytes
// never become more work or memory than the limits of a row.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "data/parquet/reader.h"

namespace {

using lockstep::data::parquet::Reader;

std::optional<std::string> next_row(Reader& reader) {
  try {
    return reader.next().dump();
  } catch (const lockstep::DataError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    Reader reader(bytes, "input");
    for (const auto& field : reader.schema().fields) type_text(field, reader.schema());
    constexpr size_t kEnoughBytes = 1 << 18;
    size_t written = 0;
    int64_t rows = 0;
    for (std::optional<std::string> row; rows < std::min<int64_t>(reader.num_rows(), 300) && written < kEnoughBytes;
         ++rows) {
      row = next_row(reader);
      written += row ? row->size() : 0;
      if (rows != 1) continue;
      Reader middle(bytes, "input");
      middle.seek(1);
      if (next_row(middle) != row) std::abort();
    }
  } catch (const lockstep::FormatError&) {
  }
  return 0;
}
