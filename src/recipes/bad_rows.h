// Tells the user which rows were left out because max_bad_rows allows it.
#pragma once

#include <ostream>
#include <span>
#include <string>

#include "data/dataset.h"

namespace lockstep::recipes {

// A line for each row: place and reason. Nothing where there is none.
void report_bad_rows(std::span<const data::BadRow> rows, int64_t max_bad_rows, std::ostream& info);

}  // namespace lockstep::recipes
