#include "rl/value_training.h"

#include <algorithm>

#include "rl/advantage/gae.h"
#include "rl/batch.h"
#include "train/dealt_rows.h"

namespace lockstep::rl {

void set_values(std::span<train::Datum> datums, train::Trainer& critic, const train::Progress& between,
                parallel::Group* group) {
  auto values = train::dealt_rows(group, datums,
                                  [&](std::span<const train::Datum> share) { return critic.values(share, between); });
  for (size_t i = 0; i < datums.size(); ++i) datums[i].values = std::move(values[i]);
}

namespace {

void measure(ValueReport& report, std::span<const train::Datum> datums) {
  double rows = 0, value = 0, wanted = 0;
  for (const train::Datum& datum : datums)
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      if (!(datum.weights[t] > 0)) continue;
      value += datum.values[t];
      wanted += datum.returns[t];
      ++rows;
    }
  if (rows == 0) return;
  report.value = value / rows;
  report.wanted = wanted / rows;
  report.explained_variance = explained_variance(datums);
}

}  // namespace

ValueReport train_values(train::Trainer& critic, std::span<const train::Datum> datums, const ValuePlan& plan,
                         const Watch& watch) {
  const int64_t steps = num_steps(datums.size(), plan.batch_size);
  ValueReport report{.lr = plan.schedule.at(critic.steps())};
  measure(report, datums);
  bool changed = false;
  for (int64_t step = 0; step < steps; ++step) {
    const std::span<const train::Datum> batch = step_batch(datums, step, plan.batch_size);
    if (!has_weight(batch)) continue;
    const auto between = [&](int64_t done) {
      watch.report(step * plan.batch_size + done, static_cast<int64_t>(datums.size()));
      if (!changed) watch.stop_if_interrupted();
    };
    const auto taken = take_step(critic, batch, plan.loss, plan.schedule.at(critic.steps()), plan.reduction, between,
                                 plan.on_not_finite);
    changed = true;  // a step that was abandoned is counted, and the rollout is then brought to its end
    if (!taken) {
      ++report.abandoned_steps;
      continue;
    }
    ++report.taken_steps;
    report.value_loss += taken->loss;
    report.clip_fraction += taken->metrics.clip_fraction;
    report.grad_norm = std::max(report.grad_norm, taken->grad_norm);
  }
  if (report.taken_steps == 0) return report;
  report.value_loss /= static_cast<double>(report.taken_steps);
  report.clip_fraction /= static_cast<double>(report.taken_steps);
  return report;
}

}  // namespace lockstep::rl
