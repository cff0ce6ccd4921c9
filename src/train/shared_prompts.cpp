#include "train/shared_prompts.h"

#include <algorithm>

#include "kernels/attention.h"

namespace lockstep::train {

namespace {

// Rows that come before everything that a datum learns, without its last row.
int64_t rows_before_learning(const Datum& datum) {
  const auto first = std::ranges::find_if(datum.weights, [](float weight) { return weight != 0; });
  return std::min<int64_t>(first - datum.weights.begin(), datum.size() - 1);
}

// First rows that both could share, in whole blocks.
int64_t common_rows(const Datum& a, const Datum& b) {
  const auto most = static_cast<size_t>(std::min(rows_before_learning(a), rows_before_learning(b)));
  const auto [end, other] =
      std::mismatch(a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(most), b.tokens.begin());
  return (end - a.tokens.begin()) / kernels::kKvBlock * kernels::kKvBlock;
}

}  // namespace

int64_t max_shared_rows(Device device) {
  return device == Device::cpu ? 2048 : 4096;
}

std::vector<int64_t> shared_prompts(std::span<const Datum> datums, int64_t max_rows,
                                    const std::function<int(size_t)>& lane_of, int64_t enough) {
  std::vector<int64_t> shared(datums.size());
  size_t first = 0;    // of the run
  int64_t rows = 0;    // that the run computes
  int64_t before = 0;  // that the runs before it compute
  for (size_t i = 0; i < datums.size(); ++i) {
    const int64_t of_run = i > first + 1 ? shared[first + 1] : 0;  // all of a run share as many; 0: not known yet
    const int64_t common = i > first && lane_of(i) == lane_of(first) ? common_rows(datums[first], datums[i]) : 0;
    const int64_t once = of_run == 0 ? common : of_run;
    if (once > 0 && common >= once && rows + datums[i].size() - once <= max_rows) {
      shared[i] = once;
      rows += datums[i].size() - once;
    } else {
      before += rows;
      if (before > enough) {
        shared.resize(i);
        break;
      }
      first = i, rows = datums[i].size();
    }
  }
  return shared;
}

}  // namespace lockstep::train
