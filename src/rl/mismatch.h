// How far a sampler's log-probs are from the trainer's for the same weights: what a foreign engine adds to off-policy.
#pragma once

#include <span>
#include <vector>

#include "train/datum.h"

namespace lockstep::rl {

// Over the rows of weight > 0, with d = policy_logprobs - sampled_logprobs. All 0 where the sampler is exact.
struct Mismatch {
  double mean = 0, max = 0;  // of |d|
  double k3 = 0;             // mean of exp(d) - 1 - d: KL(sampler || trainer), joschu.net/blog/kl-approx.html
};
Mismatch measure_mismatch(std::span<const train::Datum> datums);

// |logprobs - sampled_logprobs| over the rows of weight > 0: its mean, weighted as a loss is (per_token: over all
// tokens, else the mean over samples with a weight of each one's), and the largest. `logprobs`: of each datum, per row.
struct LogprobDifference {
  double mean = 0, max = 0;
};
LogprobDifference measure_logprobs(std::span<const train::Datum> datums, std::span<const std::vector<float>> logprobs,
                                   bool per_token);

}  // namespace lockstep::rl
