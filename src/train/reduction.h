// How the rows of a step become its loss.
#pragma once

#include <cstdint>

namespace lockstep::train {

//   sample_mean   mean over samples of each sample's mean over its rows. slime, miles; TRL "grpo"; verl
//                 "seq-mean-token-mean"
//   token_mean    mean over all rows of the step. slime --calculate-per-token-loss; TRL "dapo"; verl "token-mean"
//   token_sum     sum over all rows. verl "token-sum"; Tinker
//   sample_sum    mean over samples of each sample's sum. verl "seq-mean-token-sum"
//   fixed_length  the same divided by `length`. TRL "dr_grpo"; verl "seq-mean-token-sum-norm"; arXiv 2503.20783
enum class ReductionKind { sample_mean, token_mean, token_sum, sample_sum, fixed_length };

struct Reduction {
  ReductionKind kind = ReductionKind::sample_mean;
  double length = 0;  // of fixed_length: above 0

  bool per_token() const { return kind != ReductionKind::sample_mean; }
  // What the sum over the rows of a step of so many samples is divided by; 0: their number, by weight.
  double divisor(int64_t num_samples) const {
    const auto samples = static_cast<double>(num_samples);
    switch (kind) {
      case ReductionKind::token_sum: return 1;
      case ReductionKind::sample_sum: return samples;
      case ReductionKind::fixed_length: return samples * length;
      default: return 0;
    }
  }
};

}  // namespace lockstep::train
