// Outputs of a Trainer's model without gradients: log-probs, values, evaluation losses.
#include <algorithm>
#include <iterator>

#include "train/checks.h"
#include "train/trainer_impl.h"
#include "train/value_pass.h"

namespace lockstep::train {

std::vector<RowOutputs> Trainer::Impl::score(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                             const RowQuery& query, const Progress& between) {
  return score_rows(pass,
                    {.config = model->config(), .temperature = options.temperature, .max_tokens = options.max_tokens},
                    datums, adapter, query, between);
}

// Whole blocks are made again for a backward that never comes: the least memory.
std::vector<std::vector<float>> Trainer::Impl::values(std::span<const Datum> datums, const Progress& between) {
  require_value_head(*layout);
  require_closed("values are of no open step");
  for (size_t i = 0; i < datums.size(); ++i) {
    require_readable(datums[i], static_cast<int64_t>(i), model->config());
    require_weights(datums[i], static_cast<int64_t>(i));
  }
  model::TrainOptions least = pass_options(false);
  least.recompute = model::Recompute::full;
  std::vector<std::vector<float>> all;
  while (!datums.empty()) {
    const size_t count = micro_batch_size(datums, options.max_tokens);
    const MicroBatch batch = pack(datums.first(count), 0, true);
    const RowValues rows = forward_values(pass, batch, current, least, {}, counters, stream);
    for (size_t i = 0; i < count; ++i)
      all.emplace_back(rows.value_T.begin() + batch.sequence_begin[i],
                       rows.value_T.begin() + batch.sequence_begin[i + 1]);
    datums = datums.subspan(count);
    if (between) between(static_cast<int64_t>(all.size()));
  }
  return all;
}

// This rank's share of the datums: whole terms; the last rank also takes the remainder.
std::vector<SampleEvaluation> Trainer::Impl::evaluate_share(std::span<const Datum> datums, const Loss& loss) {
  const int64_t per_term = datums_per_term(loss), terms = static_cast<int64_t>(datums.size()) / per_term;
  const auto from = [&](int rank) {
    return rank == group.size() ? datums.size() : static_cast<size_t>(rank * terms / group.size() * per_term);
  };
  size_t first = from(group.rank());
  const size_t end = from(group.rank() + 1);
  model::TrainOptions pass_options = this->pass_options(false);
  pass_options.greedy = true;
  std::vector<SampleEvaluation> samples;
  while (first < end) {
    const std::span<const Datum> left = datums.subspan(first, end - first);
    const std::span<const Datum> now = left.first(micro_batch_size(left, options.max_tokens, per_term));
    const MicroBatch batch = pack(now, 0, true);
    std::ranges::copy(evaluate_samples(loss, now, static_cast<int64_t>(first), batch,
                                       pass.score(batch.view(), &current, pass_options)),
                      std::back_inserter(samples));
    first += now.size();
  }
  return samples;
}
}  // namespace lockstep::train
