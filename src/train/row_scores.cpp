#include "train/row_scores.h"

#include "core/error.h"
#include "train/checks.h"
#include "train/micro_batch.h"

namespace lockstep::train {

namespace {

// The rows of sequence i of a batch inside [T] or, with several values a row, [T, K].
template <class T>
std::vector<T> rows_of(const T* values, const MicroBatch& batch, size_t i, int64_t per_row = 1) {
  return std::vector<T>(values + batch.sequence_begin[i] * per_row, values + batch.sequence_begin[i + 1] * per_row);
}

RowOutputs outputs_of(const model::HeadOutputs& head, const MicroBatch& batch, size_t i, const RowQuery& query) {
  RowOutputs rows{.logprob = rows_of(head.logprob_T.f32(), batch, i), .entropy = {}};
  if (query.entropy) rows.entropy = rows_of(head.entropy_T.f32(), batch, i);
  if (query.top > 0) {
    rows.top = rows_of(head.top_TK.data(), batch, i, query.top);
    rows.top_logprob = rows_of(head.top_logprob_TK.data(), batch, i, query.top);
  }
  if (!head.candidate_logprob_TK.empty())
    rows.candidate_logprob = rows_of(head.candidate_logprob_TK.f32(), batch, i, head.candidate_logprob_TK[1]);
  return rows;
}

}  // namespace

std::vector<RowOutputs> score_rows(model::TrainPass& pass, const RowScoring& how, std::span<const Datum> datums,
                                   const lora::AdapterVersion* adapter, const RowQuery& query,
                                   const Progress& between) {
  for (size_t i = 0; i < datums.size(); ++i) {
    require_readable(datums[i], static_cast<int64_t>(i), how.config);
    if (query.only_weighted) require_weights(datums[i], static_cast<int64_t>(i));
  }
  if (!query.candidates.empty() && query.candidates.size() != datums.size())
    throw ShapeError({.what = "candidate tokens are asked about of every datum",
                      .where = "RowQuery::candidates",
                      .got = std::to_string(query.candidates.size()),
                      .wanted = std::to_string(datums.size())});
  std::vector<RowOutputs> all;
  for (size_t first = 0; first < datums.size();) {
    const size_t count = micro_batch_size(datums.subspan(first), how.max_tokens);
    MicroBatch batch = pack(datums.subspan(first, count), 0, query.only_weighted);
    if (!query.candidates.empty())
      for (const std::vector<int32_t>& tokens : query.candidates.subspan(first, count))
        batch.candidates.insert(batch.candidates.end(), tokens.begin(), tokens.end());
    const model::HeadOutputs head = pass.score(
        batch.view(), adapter, {.inv_temperature = 1.0f / how.temperature, .entropy = query.entropy, .top = query.top});
    for (size_t i = 0; i < count; ++i) all.push_back(outputs_of(head, batch, i, query));
    first += count;
    if (between) between(static_cast<int64_t>(all.size()));
  }
  return all;
}

}  // namespace lockstep::train
