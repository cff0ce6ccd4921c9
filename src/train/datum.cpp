#include "train/datum.h"

#include <cmath>
#include <string>

#include "core/error.h"

namespace lockstep::train {

double Datum::weight_sum() const {
  double sum = 0;
  for (const float weight : weights) sum += weight;
  return sum;
}

Datum make_datum(const std::vector<int32_t>& tokens, const std::vector<float>& mask) {
  if (tokens.size() != mask.size())
    throw DataError({.what = "tokens and loss mask differ in length",
                     .got = std::to_string(mask.size()) + " mask entries",
                     .wanted = std::to_string(tokens.size()) + ", one per token"});
  if (tokens.size() < 2)
    throw DataError({.what = "a training sequence is too short",
                     .got = std::to_string(tokens.size()) + " tokens",
                     .wanted = "at least 2: one to read and one to predict"});
  if (mask[0] != 0)
    throw DataError({.what = "the first token cannot be a target",
                     .where = "loss mask, entry 0",
                     .got = std::to_string(mask[0]),
                     .wanted = "0: nothing comes before it"});
  Datum datum;
  const size_t rows = tokens.size() - 1;
  datum.tokens.assign(tokens.begin(), tokens.end() - 1);
  datum.targets.resize(rows);
  datum.weights.assign(mask.begin() + 1, mask.end());
  bool any = false;
  for (size_t t = 0; t < rows; ++t) {
    const float weight = datum.weights[t];
    if (!(weight >= 0) || !std::isfinite(weight))
      throw DataError({.what = "a loss mask entry is not a weight",
                       .where = "loss mask, entry " + std::to_string(t + 1),
                       .got = std::to_string(weight),
                       .wanted = "0, 1, or a finite positive number"});
    datum.targets[t] = weight != 0 ? tokens[t + 1] : -1;
    any = any || weight != 0;
  }
  if (!any)
    throw DataError({.what = "a training sequence has no target",
                     .where = "loss mask",
                     .got = "only zeros",
                     .wanted = "at least one token to learn",
                     .attempt = "drop the row, or mark its completion with 1"});
  return datum;
}

}  // namespace lockstep::train
