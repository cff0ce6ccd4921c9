// Rows of a step that a statistic of the whole step chooses: what the loss does to them lies in the datums afterwards
// (policy_weights, penalties), so that it is a pure function of datums again. The head's outputs come from a forward
// over the step under the weights that are about to learn.
#pragma once

#include <cstdint>
#include <span>

#include "train/policy_loss.h"
#include "train/trainer.h"

namespace lockstep::train {

//   clip_cov   of the rows that the ratio does not clip and whose covariance (A - mean A)(lp - mean lp) lies between
//              cov_low and cov_high, max(1, floor(share N)) drawn ones get no policy gradient. arXiv 2505.22617, verl
//   kl_cov     the max(1, floor(share N)) rows of the largest covariance get penalty |lp - old|. The same paper; verl
// N counts the rows of weight > 0, which the means are over. Of equal covariances the first row goes first.
enum class RowChoiceKind { none, clip_cov, kl_cov };

struct RowChoice {
  RowChoiceKind kind = RowChoiceKind::none;
  double share = 2e-4;
  double cov_low = 1, cov_high = 5;
  double penalty = 1;
  // Only rows whose entropy is at least the (1 - top_entropy_quantile) quantile (linear between ranks) of the step's
  // rows get a policy gradient; 1: all. arXiv 2506.01939, TRL.
  double top_entropy_quantile = 1;

  bool is_needed() const { return kind != RowChoiceKind::none || top_entropy_quantile < 1; }
};

// Multiplies policy_weights and sets penalties of the datums of one step; outputs[i] is of datum i. Draws are counted:
// key = seed, counter = (step, sample, row, 0); the candidates with the smallest draws are taken. ConfigError for a
// share, a quantile or bounds that make no sense.
void choose_rows(const RowChoice& choice, const PolicyLoss& loss, std::span<Datum> datums,
                 std::span<const RowOutputs> outputs, uint64_t seed, uint32_t step);

// Mean over the rows of weight > 0.
double mean_entropy(std::span<const Datum> datums, std::span<const RowOutputs> outputs);

}  // namespace lockstep::train
