#include "train/dealt_logprobs.h"

#include "parallel/agree.h"
#include "parallel/gather.h"

namespace lockstep::train {

std::vector<std::vector<float>> dealt_logprobs(Trainer& trainer, parallel::Group& group, std::span<const Datum> datums,
                                               const lora::AdapterVersion* adapter, const Progress& between) {
  if (group.size() == 1) return trainer.logprobs(datums, adapter, between);
  const auto first_of = [&](int rank) {
    return datums.size() * static_cast<size_t>(rank) / static_cast<size_t>(group.size());
  };
  const size_t first = first_of(group.rank()), end = first_of(group.rank() + 1);
  std::vector<float> mine;
  parallel::agree_after(group, [&] {
    for (const std::vector<float>& rows : trainer.logprobs(datums.subspan(first, end - first), adapter, between))
      mine.insert(mine.end(), rows.begin(), rows.end());
  });
  const std::vector<float> flat = parallel::gather_values(group, std::span<const float>(mine));
  std::vector<std::vector<float>> all;
  auto next = flat.begin();
  for (const Datum& datum : datums) {
    all.emplace_back(next, next + static_cast<ptrdiff_t>(datum.size()));
    next += static_cast<ptrdiff_t>(datum.size());
  }
  return all;
}

}  // namespace lockstep::train
