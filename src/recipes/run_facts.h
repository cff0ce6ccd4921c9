// SAVE/run.json: what a run is, for those who read its files.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"

namespace lockstep::recipes {

inline constexpr const char* kRunFile = "run.json";

struct RunFacts {
  std::string kind = {};       // "rl", "sft", "dpo" (all losses of pairs), "kto"; empty: nothing is written
  int64_t iterations = 0;      // of the whole run
  OrderedJson arguments = {};  // SaveOptions::arguments, without secrets; null: none
  std::string id = {};         // that reports know the run by, the same after it is resumed; empty: there are none
};

}  // namespace lockstep::recipes
