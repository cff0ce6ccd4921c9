// What a training run shows at the bottom of a terminal while it works: where it is, how its main metrics went, where
// the time goes. At most kStepLineColumns columns wide.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"

namespace lockstep::recipes {

class LiveTable {
 public:
  explicit LiveTable(int64_t iterations) : iterations_(iterations) {}

  void add(const OrderedJson& line);  // of metrics.jsonl
  // Rows of text, without control characters:
  //   rollout 4/40: sampling 24/64
  //   [##------------------]   7 %  step 3/40  3m12s left
  //   reward             0.531  mean of 10  0.480  ▁▂▃▅▆█
  //   time               rollout 61 %, reward 2 %, train 37 %  1204 tok/s
  std::vector<std::string> rows(const std::string& doing) const;

 private:
  std::string pace() const;
  std::string time_row() const;

  const int64_t iterations_;
  int64_t first_ = 0, step_ = 0;  // steps: before the first line, and of the last
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::map<std::string, std::deque<double>> history_;
  std::map<std::string, double> last_;
};

// One character for each of the last `columns` values, or means of neighbours where there are more, from the smallest
// to the largest; what is not finite is a space.
std::string sparkline(std::span<const double> values, size_t columns);

}  // namespace lockstep::recipes
