#include "train/not_finite.h"

#include <algorithm>

namespace lockstep::train {

NotFinite find_not_finite(Trainer& trainer, std::span<const Datum> datums, const Loss& loss) {
  const int64_t per_term = datums_per_term(loss), count = static_cast<int64_t>(datums.size());
  for (int64_t first = 0; first + per_term <= count; first += per_term) {
    trainer.begin_step({.num_samples = per_term, .datums_per_term = per_term});
    try {
      trainer.forward_backward(datums.subspan(static_cast<size_t>(first), static_cast<size_t>(per_term)), loss);
    } catch (const NotFiniteError&) {
      return {.sample = first};
    }
    if (std::string module = trainer.discard_step(); !module.empty())
      return {.sample = first, .module = std::move(module)};
  }
  return {};
}

}  // namespace lockstep::train
