#include "train/train_step.h"

#include <variant>

namespace lockstep::train {

StepPlan step_plan(std::span<const Datum> datums, const Loss& loss, const Reduction& reduction) {
  StepPlan plan{.num_samples = static_cast<int64_t>(datums.size()),
                .datums_per_term = datums_per_term(loss),
                .divisor = reduction.divisor(static_cast<int64_t>(datums.size())),
                .share_prompts = std::holds_alternative<PolicyLoss>(loss)};
  for (const Datum& datum : datums) plan.weight_total += datum.weight_sum();
  plan.per_token = reduction.per_token() && plan.weight_total > 0;
  return plan;
}

StepReport train_step(Trainer& trainer, std::span<const Datum> datums, const Loss& loss, double lr,
                      const Reduction& reduction, const Progress& between) {
  StepPlan plan = step_plan(datums, loss, reduction);
  plan.order = trainer.order_of(datums, plan.datums_per_term);
  const SampleRange own = trainer.begin_step(plan);
  try {
    std::span<const Datum> mine = datums.subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()));
    std::vector<Datum> moved;
    if (!plan.order.empty()) {
      for (int64_t i = own.begin; i < own.end; ++i)
        moved.push_back(datums[static_cast<size_t>(plan.order[static_cast<size_t>(i)])]);
      mine = moved;
    }
    if (own.size() > 0) trainer.forward_backward(mine, loss, between);
    return trainer.optim_step(lr);
  } catch (...) {
    trainer.abandon_step();
    throw;
  }
}

}  // namespace lockstep::train
