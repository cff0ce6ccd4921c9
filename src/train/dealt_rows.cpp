#include "train/dealt_rows.h"

#include "parallel/agree.h"
#include "parallel/gather.h"

namespace lockstep::train {

std::vector<std::vector<float>> dealt_rows(parallel::Group* group, std::span<const Datum> datums,
                                           const RowsOf& rows_of) {
  if (group == nullptr || group->size() == 1) return rows_of(datums);
  const auto first_of = [&](int rank) {
    return datums.size() * static_cast<size_t>(rank) / static_cast<size_t>(group->size());
  };
  const size_t first = first_of(group->rank()), end = first_of(group->rank() + 1);
  std::vector<float> mine;
  std::vector<int64_t> my_sizes;
  parallel::agree_after(*group, [&] {
    if (first == end) return;
    for (const std::vector<float>& rows : rows_of(datums.subspan(first, end - first))) {
      mine.insert(mine.end(), rows.begin(), rows.end());
      my_sizes.push_back(static_cast<int64_t>(rows.size()));
    }
  });
  const std::vector<int64_t> sizes = parallel::gather_values(*group, std::span<const int64_t>(my_sizes));
  const std::vector<float> flat = parallel::gather_values(*group, std::span<const float>(mine));
  std::vector<std::vector<float>> all;
  auto next = flat.begin();
  for (const int64_t size : sizes) {
    all.emplace_back(next, next + size);
    next += size;
  }
  return all;
}

}  // namespace lockstep::train
