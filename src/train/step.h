// What goes into an optimizer step and what comes out of it.
#pragma once

#include <cstdint>
#include <vector>

#include "train/loss.h"

namespace lockstep::train {

// Of the whole step, whatever part of it this rank takes.
struct StepPlan {
  int64_t num_samples = 0;  // B of the step
  double weight_total = 0;  // sum of row weights over the step; needed when per_token
  bool per_token = false;   // loss over all tokens instead of mean of sample means
  // Of the step's loss (datums_per_term): lanes and micro-batches hold whole terms, so that B above counts terms.
  int64_t datums_per_term = 1;
  double divisor = 0;  // per_token: of the sum over all tokens; 0: weight_total
  // Samples with one prompt that follow one another compute it once (train/shared_prompts.h). Decides the last bits of
  // the gradient; then the calls of forward_backward that a step is cut into decide them, too.
  bool share_prompts = false;
  // Which of the caller's samples each sample of the step is, where it takes them in another order (train/balance.h).
  std::vector<int64_t> order = {};
};

struct LossReport {
  double loss = 0;     // share of the step's loss
  Metrics metrics;     // of the loss (train/loss.h)
  int64_t tokens = 0;  // rows computed
};

// Of the whole step, and the same on every rank.
struct StepReport {
  double loss = 0;
  double grad_norm = 0;  // before clipping
  Metrics metrics;       // means are over the samples that have a weight
  int64_t tokens = 0;
};

}  // namespace lockstep::train
