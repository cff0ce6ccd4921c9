#include "core/nearest_name.h"

#include <algorithm>

namespace lockstep {

namespace {

// Optimal string alignment distance.
size_t num_edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  return cost[a.size()][b.size()];
}

constexpr size_t kLongest = 256;  // what is compared of an absurd argument

}  // namespace

bool is_near(std::string_view name, std::string_view candidate) {
  return 3 * num_edits(name.substr(0, kLongest), candidate) <= candidate.size();
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  name = name.substr(0, kLongest);
  const auto fewer = [name](const std::string& a, const std::string& b) {
    return num_edits(name, a) < num_edits(name, b);
  };
  const auto nearest = std::min_element(candidates.begin(), candidates.end(), fewer);
  return nearest == candidates.end() ? std::string() : *nearest;
}

}  // namespace lockstep
