// A micro-batch: whole datums back to back, as the model reads them.
#pragma once

#include <span>
#include <vector>

#include "model/train_pass.h"
#include "train/datum.h"

namespace lockstep::train {

struct MicroBatch {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> sequence_begin;
  std::vector<int32_t> sample, position;  // of each row: number of its sample in the step, and place in it
  std::vector<int32_t> candidates;        // [T * K]: other tokens whose log-probs are asked for; empty: none
  std::vector<int64_t> shared;            // of each sequence (model::TrainBatch); empty: none

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  model::TrainBatch view() const { return {tokens, sequence_begin, targets, candidates, shared}; }
};

// The number of leading items that make a micro-batch: as many as fit `max_rows`, at least one. rows_of(item): its
// rows.
template <class Item, class RowsOf>
size_t micro_batch_size(std::span<Item> items, int64_t max_rows, const RowsOf& rows_of) {
  size_t count = 0;
  for (int64_t rows = 0; count < items.size(); ++count) {
    rows += static_cast<int64_t>(rows_of(items[count]));
    if (count > 0 && rows > max_rows) break;
  }
  return count;
}
// The same for datums of which each `per_term` belong together: a whole number of terms.
size_t micro_batch_size(std::span<const Datum> datums, int64_t max_rows, int64_t per_term = 1);
// The same, where datums[i] computes shared[i] rows less, and then stays with the datum before it.
size_t micro_batch_size(std::span<const Datum> datums, std::span<const int64_t> shared, int64_t max_rows,
                        int64_t per_term);

// first_sample: number in the step of the first datum. only_weighted: the head does not run for rows of weight 0.
MicroBatch pack(std::span<const Datum> datums, int64_t first_sample, bool only_weighted);
// The datums' candidates become the batch's; a datum that has fewer than others gets -1 in their place.
void pack_candidates(MicroBatch& batch, std::span<const Datum> datums);
// The sequences of `more`, which has no candidates, behind those of `batch`.
void append(MicroBatch& batch, MicroBatch more);

}  // namespace lockstep::train
