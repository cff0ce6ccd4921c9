// One value of a Parquet column as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "data/parquet/schema.h"

namespace lockstep::data::parquet {

// `bytes` as ValueReader gives them.
//   string, enum, json   a string; its UTF-8 is checked
//   integers, booleans   themselves
//   floats               a number; NaN and infinities, which JSON does not have, are null
//   decimal              "-12.50", exact
//   date, time           "2024-06-07", "09:41:00.123456" (Python's isoformat; nine digits only where nanoseconds need
//   them) timestamp            "2024-06-07T09:41:00", with "+00:00" behind it if it is a point of time (UTC) uuid
//   "f81d4fae-7dec-11d0-a765-00a0c91e6bf6" other bytes          base64
// nullopt, and the reason in `problem`: a string that is no UTF-8, a date outside the years 1 to 9999, a time outside
// the day.
std::optional<OrderedJson> to_json(const Column& column, std::string_view bytes, std::string& problem);

}  // namespace lockstep::data::parquet
