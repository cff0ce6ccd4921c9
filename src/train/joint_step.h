// Steps of several trainers on one base whose samples share forward and backward passes: many adapters train at once,
// and the base's weights are read once for all of them.
//
// Each trainer keeps its own step, gradient lanes, optimizer and clipping, and gets the bits that it gets alone: rows
// of other adapters in a batch change nothing of a row or of an adapter's gradient (model/train_pass.h), and a lane is
// one chain over the trainer's own samples in order, however they are cut into micro-batches.
#pragma once

#include <span>
#include <vector>

#include "train/reduction.h"
#include "train/trainer.h"

namespace lockstep::train {

// Samples of one trainer's open step, in its batch order.
struct TrainerBatch {
  Trainer& trainer;
  std::span<const Datum> datums;
  const Loss& loss;
};

// Trainer::forward_backward of all of them; the reports in the same order. The first trainer's memory and max_tokens
// are used. Losses that read other outputs of the head (entropies, candidates, a critic's values) get passes of their
// own within the call. ConfigError, and nothing has changed: a trainer without an open step, one that comes twice,
// another model, stream or temperature than the first one's, or dropout that would not be the first one's (p, seed and
// number of steps are equal, or p is 0). Every other error is as of Trainer::forward_backward, names the batch by its
// index, and ends the steps of all of them; with several ranks it is thrown by the first trainer's optim_step on the
// others.
std::vector<LossReport> forward_backward(std::span<const TrainerBatch> batches, const Progress& between = {});

// train_step of several trainers at once: what one of them learns in a step.
struct TrainerStep {
  Trainer& trainer;
  std::span<const Datum> datums;  // of the whole step; every rank passes all
  const Loss& loss;
  double lr = 0;
  Reduction reduction = {};
};

// begin_step of all, one forward_backward of their samples, then optim_step of each in order. ConfigError as of
// forward_backward above, before anything is computed. Whatever is thrown before the first optim_step changes no
// adapter; an error of an optim_step leaves the trainers before it updated and the others as they were. No step stays
// open.
std::vector<StepReport> train_steps(std::span<const TrainerStep> steps, const Progress& between = {});

}  // namespace lockstep::train
