#include "rl/batch.h"

namespace lockstep::rl {

train::Datum make_datum(const Trajectory& trajectory) {
  train::Datum datum = train::make_datum(trajectory.tokens, trajectory.mask);
  datum.sampled_logprobs.assign(trajectory.sampled_logprobs.begin() + 1, trajectory.sampled_logprobs.end());
  if (!trajectory.reward) datum.weights.assign(datum.weights.size(), 0.0f);
  return datum;
}

std::vector<train::Datum> make_datums(std::span<const Trajectory> trajectories) {
  std::vector<train::Datum> datums;
  for (const Trajectory& trajectory : trajectories) datums.push_back(make_datum(trajectory));
  return datums;
}

std::span<const train::Datum> step_batch(std::span<const train::Datum> datums, int64_t step, int64_t batch_size) {
  return datums.subspan(static_cast<size_t>(step * batch_size), static_cast<size_t>(batch_size));
}

}  // namespace lockstep::rl
