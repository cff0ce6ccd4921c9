#include "rl/batch.h"

#include <algorithm>

namespace lockstep::rl {

namespace {

// Without any token to learn, as truncated samples may be (mask_truncated): no row has a target.
train::Datum without_targets(const std::vector<int32_t>& tokens) {
  std::vector<float> mask(tokens.size(), 1.0f);
  mask[0] = 0;
  train::Datum datum = train::make_datum(tokens, mask);
  std::ranges::fill(datum.targets, -1);
  std::ranges::fill(datum.weights, 0.0f);
  return datum;
}

}  // namespace

train::Datum make_datum(const Trajectory& trajectory) {
  const bool learns = std::ranges::any_of(trajectory.mask, [](float weight) { return weight != 0; });
  train::Datum datum =
      learns ? train::make_datum(trajectory.tokens, trajectory.mask) : without_targets(trajectory.tokens);
  for (size_t t = 0; t < datum.targets.size(); ++t)
    if (trajectory.chosen(t + 1)) datum.targets[t] = trajectory.tokens[t + 1];
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
