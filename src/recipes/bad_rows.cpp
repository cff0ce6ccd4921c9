#include "recipes/bad_rows.h"

#include <fmt/format.h>

namespace lockstep::recipes {

void report_bad_rows(std::span<const data::BadRow> rows, int64_t max_bad_rows, std::ostream& info) {
  if (rows.empty()) return;
  info << fmt::format("note    {} bad row{} left out (RowOptions::max_bad_rows {}):\n", rows.size(),
                      rows.size() == 1 ? "" : "s", max_bad_rows);
  for (const data::BadRow& row : rows) info << fmt::format("        {}: {}\n", row.place, row.reason);
}

}  // namespace lockstep::recipes
