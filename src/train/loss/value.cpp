// The clipped loss of a critic's values.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

struct ValueTerm {
  double value = 0, slope = 0;
  bool clipped = false;
};

ValueTerm value_term(double clip, double value, double old, double wanted) {
  const double direct = (value - wanted) * (value - wanted), slope = 2 * (value - wanted);
  if (clip == 0) return {direct, slope, false};
  const bool outside = std::abs(value - old) > clip;
  const double bounded = outside ? old + std::clamp(value - old, -clip, clip) : value;
  const double held = (bounded - wanted) * (bounded - wanted);
  if (held > direct) return {held, 0, outside};  // only a value outside the bounds gets here: no gradient
  return {direct, slope, outside};
}

}  // namespace

void require_sensible(const ValueLoss& loss) {
  if (loss.clip >= 0 && std::isfinite(loss.clip)) return;
  throw ConfigError({.what = "impossible clip range of values",
                     .where = "ValueLoss::clip",
                     .got = std::to_string(loss.clip),
                     .wanted = "a finite number >= 0 (0: off)"});
}

void require_fields(const ValueLoss&, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "values", datum.values.size());
  require_rows(datum, sample, "returns", datum.returns.size());
}

double evaluate_values(const ValueLoss& loss, const SampleScale& scale, const Datum& datum, int64_t sample,
                       const SampleRows& rows, Metrics& metrics) {
  double total = 0;
  for (int64_t t = 0; t < datum.size(); ++t) {
    const auto at = static_cast<size_t>(t);
    rows.d_logprob[at] = 0;
    if (!rows.d_entropy.empty()) rows.d_entropy[at] = 0;
    if (datum.weights[at] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[at], 0.0};
    if (!std::isfinite(row.logprob)) not_finite(row, "the value is not finite", std::to_string(row.logprob));
    require_row(row);
    if (!std::isfinite(datum.values[at]) || !std::isfinite(datum.returns[at]))
      fail(row, "an old value or a return is not finite",
           std::to_string(datum.values[at]) + ", " + std::to_string(datum.returns[at]), "finite numbers");
    const ValueTerm term = value_term(loss.clip, row.logprob, datum.values[at], datum.returns[at]);
    const double weight = scale.loss * datum.weights[at], value = weight * term.value;
    rows.d_logprob[at] = static_cast<float>(weight * term.slope);
    require_finite(row, value, rows.d_logprob[at]);
    total += value;
    metrics.clip_fraction += term.clipped ? scale.metric * datum.weights[at] : 0;
  }
  return total;
}

}  // namespace lockstep::train
