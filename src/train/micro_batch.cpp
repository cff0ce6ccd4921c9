#include "train/micro_batch.h"

#include <algorithm>
#include <utility>

namespace lockstep::train {

size_t micro_batch_size(std::span<const Datum> datums, int64_t max_rows, int64_t per_term) {
  return micro_batch_size(datums, std::vector<int64_t>(datums.size()), max_rows, per_term);
}

size_t micro_batch_size(std::span<const Datum> datums, std::span<const int64_t> shared, int64_t max_rows,
                        int64_t per_term) {
  const auto term = static_cast<size_t>(per_term);
  size_t count = 0;
  for (int64_t rows = 0; count + term <= datums.size();) {
    size_t end = count;
    do {
      for (const size_t term_end = end + term; end < term_end; ++end) rows += datums[end].size() - shared[end];
    } while (end + term <= datums.size() && shared[end] > 0);
    if (count > 0 && rows > max_rows) break;
    count = end;
  }
  return count > 0 ? count : datums.size();
}

MicroBatch pack(std::span<const Datum> datums, int64_t first_sample, bool only_weighted) {
  MicroBatch batch;
  batch.sequence_begin = {0};
  for (size_t i = 0; i < datums.size(); ++i) {
    const Datum& datum = datums[i];
    for (int64_t t = 0; t < datum.size(); ++t) {
      batch.tokens.push_back(datum.tokens[t]);
      batch.targets.push_back(only_weighted && datum.weights[t] == 0 ? -1 : datum.targets[t]);
      batch.sample.push_back(static_cast<int32_t>(first_sample + static_cast<int64_t>(i)));
      batch.position.push_back(static_cast<int32_t>(t));
    }
    batch.sequence_begin.push_back(batch.rows());
  }
  return batch;
}

void pack_candidates(MicroBatch& batch, std::span<const Datum> datums) {
  int64_t most = 0;
  for (const Datum& datum : datums) most = std::max(most, datum.num_candidates());
  for (const Datum& datum : datums) {
    const int64_t own = datum.num_candidates();
    for (int64_t t = 0; t < datum.size(); ++t) {
      const auto from = datum.candidates.begin() + t * own;
      batch.candidates.insert(batch.candidates.end(), from, from + own);
      batch.candidates.insert(batch.candidates.end(), static_cast<size_t>(most - own), -1);
    }
  }
}

void append(MicroBatch& batch, MicroBatch more) {
  if (batch.tokens.empty()) {
    batch = std::move(more);
    return;
  }
  const int64_t first = batch.rows();
  for (size_t i = 1; i < more.sequence_begin.size(); ++i)
    batch.sequence_begin.push_back(first + more.sequence_begin[i]);
  const auto join = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  join(batch.tokens, more.tokens), join(batch.targets, more.targets);
  join(batch.sample, more.sample), join(batch.position, more.position);
}

}  // namespace lockstep::train
