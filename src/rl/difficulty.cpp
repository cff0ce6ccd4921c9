#include "rl/difficulty.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lockstep::rl {

DifficultyPools::Pool DifficultyPools::pool_of(int64_t row) const {
  const auto known = history_.find(row);
  if (known == history_.end()) return Pool::normal;
  if (options_.easy && known->second >= *options_.easy) return Pool::easy;
  return options_.hard && known->second <= *options_.hard ? Pool::hard : Pool::normal;
}

std::vector<DifficultyPools::Pick> DifficultyPools::pick(data::DataOrder& order, int64_t position,
                                                         int64_t count) const {
  const auto share = [&](double fraction) {
    return static_cast<int64_t>(std::floor(fraction * static_cast<double>(count) + 1e-9));
  };
  int64_t easy = share(options_.easy_fraction), hard = share(options_.hard_fraction);
  std::vector<Pick> picks;
  std::vector<int64_t> passed;
  int64_t walked = 0;
  for (; std::ssize(picks) < count && walked < num_rows_; ++walked) {
    const int64_t row = order.rows(position + walked, 1)[0];
    const Pool pool = pool_of(row);
    int64_t* room = pool == Pool::easy ? &easy : pool == Pool::hard ? &hard : nullptr;
    if (room != nullptr && *room == 0) {
      passed.push_back(row);
      continue;
    }
    if (room != nullptr) --*room;
    picks.push_back({row, walked + 1});
  }
  for (size_t i = 0; i < passed.size() && std::ssize(picks) < count; ++i) picks.push_back({passed[i], walked});
  for (; std::ssize(picks) < count; ++walked) picks.push_back({order.rows(position + walked, 1)[0], walked + 1});
  return picks;
}

DifficultyPools::Sizes DifficultyPools::sizes() const {
  Sizes sizes;
  for (const auto& [row, mean] : history_) {
    const Pool pool = pool_of(row);
    sizes.easy += pool == Pool::easy;
    sizes.hard += pool == Pool::hard;
  }
  sizes.normal = num_rows_ - sizes.easy - sizes.hard;
  return sizes;
}

OrderedJson DifficultyPools::json() const {
  OrderedJson history = OrderedJson::array();
  for (const auto& [row, mean] : history_) history.push_back({row, mean});
  return history;
}

void DifficultyPools::restore(const Json& history) {
  history_.clear();
  const auto refuse = [](const Json& got) {
    throw FormatError({.what = "not the history of difficulty pools",
                       .where = "parts/difficulty.json",
                       .got = json_text(got).substr(0, 80),
                       .wanted = "[[row, mean reward], ...]"});
  };
  if (!history.is_array()) refuse(history);
  for (const Json& entry : history) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_integer() || !entry[1].is_number() ||
        entry[0].get<int64_t>() < 0 || entry[0].get<int64_t>() >= num_rows_)
      refuse(entry);
    history_[entry[0].get<int64_t>()] = entry[1].get<double>();
  }
}

}  // namespace lockstep::rl
