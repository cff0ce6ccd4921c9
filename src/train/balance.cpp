#include "train/balance.h"

#include <algorithm>
#include <numeric>

namespace lockstep::train {

namespace {

double cost_of(const Datum& datum, Balance balance, const model::ModelSpec& spec) {
  const auto tokens = static_cast<double>(datum.size());
  if (balance != Balance::flops) return tokens;
  // A token attends to half of its sample on average: once for the scores, once for the values.
  const double attention = static_cast<double>(spec.layers * spec.q_width()) * tokens;
  return tokens * (static_cast<double>(model::num_parameters(spec)) + attention);
}

// The terms of each lane.
std::vector<std::vector<int64_t>> deal(const std::vector<double>& costs, int lanes) {
  const auto terms = static_cast<int64_t>(costs.size());
  std::vector<int64_t> heaviest(costs.size());
  std::iota(heaviest.begin(), heaviest.end(), 0);
  std::ranges::stable_sort(
      heaviest, [&](int64_t a, int64_t b) { return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)]; });
  std::vector<std::vector<int64_t>> dealt(static_cast<size_t>(lanes));
  const auto has_room = [&](int64_t lane) {
    const int64_t most = (lane + 1) * terms / lanes - lane * terms / lanes;
    return static_cast<int64_t>(dealt[static_cast<size_t>(lane)].size()) < most;
  };
  std::vector<double> weights(dealt.size());
  for (const int64_t term : heaviest) {
    int64_t lightest = -1;
    for (int64_t lane = 0; lane < lanes; ++lane)
      if (has_room(lane) &&
          (lightest < 0 || weights[static_cast<size_t>(lane)] < weights[static_cast<size_t>(lightest)]))
        lightest = lane;
    dealt[static_cast<size_t>(lightest)].push_back(term);
    weights[static_cast<size_t>(lightest)] += costs[static_cast<size_t>(term)];
  }
  return dealt;
}

}  // namespace

std::vector<int64_t> balanced_order(std::span<const Datum> datums, int64_t datums_per_term, int lanes, Balance balance,
                                    const model::ModelSpec& spec) {
  std::vector<double> costs(datums.size() / static_cast<size_t>(datums_per_term));
  for (size_t i = 0; i < costs.size() * static_cast<size_t>(datums_per_term); ++i)
    costs[i / static_cast<size_t>(datums_per_term)] += cost_of(datums[i], balance, spec);
  std::vector<int64_t> order;
  for (std::vector<int64_t>& lane : deal(costs, lanes)) {
    std::ranges::sort(lane);
    for (const int64_t term : lane)
      for (int64_t i = 0; i < datums_per_term; ++i) order.push_back(term * datums_per_term + i);
  }
  return order;
}

}  // namespace lockstep::train
