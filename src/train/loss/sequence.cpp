// What the losses over whole completions share.
#include <cmath>

#include "train/loss/rows.h"

namespace lockstep::train {

SequenceLogprobs sum_logprobs(const Datum& datum, int64_t sample, const SampleRows& rows, bool with_reference) {
  SequenceLogprobs sums;
  for (int64_t t = 0; t < datum.size(); ++t) {
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], 0};
    require_row(row);
    sums.policy += static_cast<double>(datum.weights[t]) * rows.logprob[t];
    sums.weight += datum.weights[t];
    if (!with_reference) continue;
    require_finite(row, datum.ref_logprobs[t], 0);
    sums.reference += static_cast<double>(datum.weights[t]) * datum.ref_logprobs[t];
  }
  return sums;
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

void write_slopes(const Datum& datum, int64_t sample, const SampleRows& rows, double value, double slope) {
  for (int64_t t = 0; t < datum.size(); ++t) {
    const double weight = static_cast<double>(datum.weights[t]) * slope;
    rows.d_logprob[t] = static_cast<float>(weight);
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = 0;
    require_finite({datum, sample, t, 0, 0}, value, weight);
  }
}

}  // namespace lockstep::train
