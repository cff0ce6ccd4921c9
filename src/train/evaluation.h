// Evaluation of an adapter on held-out data: losses without gradients.
#pragma once

#include <vector>

#include "model/train_pass.h"
#include "train/loss.h"
#include "train/micro_batch.h"

namespace lockstep::train {

// The values of one datum. Each term of the loss counts fully, unscaled by the size of a step.
struct SampleEvaluation {
  int64_t terms = 0;                 // 1 for the first datum of a term, which has the term's loss
  double loss = 0;                   // of -lp's weighted mean, or of a pair
  double nll = 0, weight = 0;        // sum of w * -lp and of w over the rows
  int64_t targets = 0, correct = 0;  // rows of weight > 0, and those whose target has the largest logit
  Metrics metrics;
};

// The datums of one batch, whole terms, and the outputs of the head for them (with TrainOptions::greedy); first_sample
// is the number of the first, for messages. SftLoss and DpoLoss; ConfigError otherwise, DataError as evaluate_loss.
std::vector<SampleEvaluation> evaluate_samples(const Loss& loss, std::span<const Datum> datums, int64_t first_sample,
                                               const MicroBatch& batch, const model::HeadOutputs& head);

// Sums over the samples that were evaluated, added one by one in order, so that any split gives the same bits.
struct Evaluation {
  int64_t samples = 0;  // terms of the loss: sequences, or pairs
  double loss = 0, nll = 0, weight = 0;
  int64_t targets = 0, correct = 0;
  Metrics metrics;

  void add(const SampleEvaluation& sample);
  bool operator==(const Evaluation&) const = default;
  // On the scale of a training step's loss.
  double mean_loss(bool per_token) const { return per_token ? nll / weight : loss / static_cast<double>(samples); }
};

}  // namespace lockstep::train
