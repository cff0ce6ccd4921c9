// What a held-out set says of an adapter: losses without gradients.
#pragma once

#include "model/train_pass.h"
#include "train/loss.h"
#include "train/micro_batch.h"

namespace lockstep::train {

// Sums over the samples that were evaluated, so that any split into calls gives the same bits.
struct Evaluation {
  int64_t samples = 0;               // terms of the loss: sequences, or pairs
  double loss = 0;                   // sum over terms: of -lp's weighted mean, or of a pair's loss
  double nll = 0, weight = 0;        // sum of w * -lp and of w over all rows
  int64_t targets = 0, correct = 0;  // rows of weight > 0, and those whose target has the largest logit
  Metrics metrics;                   // sums over terms

  // Adds the datums of one batch, whole terms, and what the head says of them (with TrainOptions::greedy). SftLoss and
  // DpoLoss; ConfigError otherwise, DataError as evaluate_loss.
  void add(const Loss& loss, std::span<const Datum> datums, const MicroBatch& batch, const model::HeadOutputs& head);

  // On the scale of a training step's loss.
  double mean_loss(bool per_token) const { return per_token ? nll / weight : loss / static_cast<double>(samples); }
};

}  // namespace lockstep::train
