// One row of a data set.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/json.h"

namespace lockstep::data {

struct Row {
  int64_t number = 0;  // from 0, in the slice that was asked for; bad rows count too
  int64_t line =
      0;  // from 1: of the file where the row begins; of Parquet, which has no lines, the row's place in the file
  OrderedJson json;                                      // an object; columns of Parquet in the order of its schema
  std::map<std::string, std::string> number_texts = {};  // its top-level numbers that are no integers, as written
};

}  // namespace lockstep::data
