#include "train/joint_step.h"

#include "train/train_step.h"

namespace lockstep::train {

std::vector<StepReport> train_steps(std::span<const TrainerStep> steps, const Progress& between) {
  const auto abandon = [&] {
    for (const TrainerStep& step : steps) step.trainer.abandon_step();
  };
  std::vector<TrainerBatch> batches;
  for (const TrainerStep& step : steps) {
    SampleRange own;
    try {
      own = step.trainer.begin_step(step_plan(step.datums, step.loss, step.reduction));
    } catch (...) {
      // Those before this one were opened here; this one, if open, belongs to somebody else.
      for (const TrainerBatch& opened : batches) opened.trainer.abandon_step();
      throw;
    }
    batches.push_back({.trainer = step.trainer,
                       .datums = step.datums.subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size())),
                       .loss = step.loss});
  }
  try {
    forward_backward(batches, between);
    std::vector<StepReport> reports;
    for (const TrainerStep& step : steps) reports.push_back(step.trainer.optim_step(step.lr));
    return reports;
  } catch (...) {
    abandon();
    throw;
  }
}

}  // namespace lockstep::train
