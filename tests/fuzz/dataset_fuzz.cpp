// A data set of any format and compression, told by its bytes: rows in order are the rows by number, read backwards,
// and every row is an object; every refusal is a typed error.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "data/dataset.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const testing::InputFile input(data, size);
  try {
    data::Dataset rows = data::Dataset::open(input.path(), {.max_bad_rows = 20});
    constexpr int64_t kMax = 100;
    std::map<int64_t, std::string> found;
    while (const auto row = rows.next()) {
      if (!row->json.is_object() || row->line < 1) std::abort();
      rows.accept(*row, [&] { data::string_field(rows, *row, "prompt"); });
      found[row->number] = row->json.dump();
      if (row->number >= kMax) break;
    }
    if (rows.size() > 10 * kMax) return 0;  // a few bytes of Parquet can be any number of rows
    for (int64_t i = std::min(rows.size(), kMax); i-- > 0;) {
      try {
        const data::Row row = rows.row(i);
        if (found.contains(i) && row.json.dump() != found.at(i)) std::abort();
      } catch (const DataError&) {
        if (found.contains(i)) std::abort();
      }
    }
  } catch (const DataError&) {
  } catch (const FormatError&) {
  }
  return 0;
}
