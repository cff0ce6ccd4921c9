#include "train/loss/rows.h"

#include <cmath>

#include "core/error.h"
#include "train/not_finite_error.h"

namespace lockstep::train {

void fail(const Row& row, const std::string& what, const std::string& got, const std::string& wanted) {
  throw DataError({.what = what,
                   .where = "sample " + std::to_string(row.sample) + ", row " + std::to_string(row.index),
                   .got = got,
                   .wanted = wanted});
}

void not_finite(const Row& row, const std::string& what, const std::string& got) {
  throw NotFiniteError({.what = what,
                        .where = "sample " + std::to_string(row.sample) + ", row " + std::to_string(row.index),
                        .got = got,
                        .wanted = "finite numbers"});
}

void require_row(const Row& row) {
  const float weight = row.datum.weights[row.index];
  const int32_t target = row.datum.targets[row.index];
  if (!(weight > 0) || !std::isfinite(weight) || target < 0)
    fail(row, "a row's weight does not fit its target",
         "weight " + std::to_string(weight) + ", target " + std::to_string(target),
         "a finite weight >= 0, and 0 where there is no target");
  if (!std::isfinite(row.logprob) || !std::isfinite(row.entropy))
    not_finite(row, "the model's output is not finite",
               "log-prob " + std::to_string(row.logprob) + ", entropy " + std::to_string(row.entropy));
}

void require_finite(const Row& row, double value, double gradient) {
  if (std::isfinite(value) && std::isfinite(gradient)) return;
  not_finite(row, "the loss is not finite", "loss " + std::to_string(value) + ", gradient " + std::to_string(gradient));
}

void require_rows(const Datum& datum, int64_t sample, const char* field, size_t rows) {
  if (static_cast<int64_t>(rows) == datum.size()) return;
  throw DataError({.what = "a datum has the wrong number of entries",
                   .where = "sample " + std::to_string(sample) + ", " + field,
                   .got = std::to_string(rows),
                   .wanted = std::to_string(datum.size()) + ", one per token"});
}

SampleScale sample_scale(const LossScale& scale, const Datum& datum) {
  if (scale.per_token) {
    const double mean = 1.0 / scale.weight_total;
    return {.loss = scale.divisor > 0 ? 1.0 / scale.divisor : mean, .metric = mean};
  }
  const double sum = datum.weight_sum();
  const double mean = sum > 0 ? 1.0 / (sum * static_cast<double>(scale.num_samples)) : 0.0;
  return {.loss = mean, .metric = mean};
}

}  // namespace lockstep::train
