// Lines of metrics.jsonl, to be compared between runs.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "core/json.h"

namespace lockstep::testing {

// Removes what no two runs share: times, memory, and how evenly ranks share the work.
inline void erase_unshared(Json& line) {
  for (const char* key : {"tokens_per_s", "rollout_ms", "reward_ms", "train_ms", "publish_ms", "memory_bytes",
                          "gpu_memory_bytes", "rank_imbalance"})
    line.erase(key);
}

// What runs share of the lines of a file. A line that a killed process has not finished is left out.
inline std::vector<Json> shared_metrics(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) continue;
    erase_unshared(json);
    lines.push_back(std::move(json));
  }
  return lines;
}

}  // namespace lockstep::testing
