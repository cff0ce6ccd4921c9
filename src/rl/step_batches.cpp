#include "rl/step_batches.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::rl {

int64_t num_steps(size_t samples, int64_t batch_size) {
  const auto count = static_cast<int64_t>(samples);
  if (batch_size < 1 || count == 0 || count % batch_size != 0)
    throw ConfigError({.what = "a rollout cannot be cut into optimizer steps",
                       .where = "batch_size",
                       .got = std::to_string(batch_size),
                       .wanted = "a divisor of " + std::to_string(count) + ", the samples of a rollout"});
  return count / batch_size;
}

bool has_weight(std::span<const train::Datum> batch) {
  return std::ranges::any_of(batch, [](const train::Datum& datum) { return datum.weight_sum() > 0; });
}

std::optional<train::StepReport> take_step(train::Trainer& trainer, std::span<const train::Datum> batch,
                                           const train::Loss& loss, double lr, const train::Reduction& reduction,
                                           const train::Progress& between, const OnNotFinite& on_not_finite) {
  try {
    return train::train_step(trainer, batch, loss, lr, reduction, between);
  } catch (const train::NotFiniteError& error) {
    if (!on_not_finite) throw;
    on_not_finite(error, batch);
    return std::nullopt;
  }
}

}  // namespace lockstep::rl
