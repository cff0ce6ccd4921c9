#include "train/open_step.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "parallel/agree.h"
#include "parallel/gather.h"

namespace lockstep::train {

namespace {

// Row weights of a step against its plan: both are sums of the same numbers, perhaps in another order.
constexpr double kWeightTolerance = 1e-6;

void require_plan(const StepPlan& plan, const std::string& name) {
  if (plan.num_samples < 1)
    throw ConfigError({.what = "a step needs samples",
                       .where = name,
                       .got = std::to_string(plan.num_samples),
                       .wanted = "at least 1"});
  if (plan.per_token && !(plan.weight_total > 0 && std::isfinite(plan.weight_total)))
    throw ConfigError({.what = "a loss per token needs the step's total weight",
                       .where = name,
                       .got = std::to_string(plan.weight_total),
                       .wanted = "a positive number"});
  if (plan.divisor < 0 || !std::isfinite(plan.divisor))
    throw ConfigError({.what = "a step's loss is divided by a positive number",
                       .where = name,
                       .got = std::to_string(plan.divisor),
                       .wanted = "a positive number, or 0: the total weight"});
  if (plan.datums_per_term < 1 || plan.num_samples % plan.datums_per_term != 0)
    throw ConfigError({.what = "a step holds whole terms of its loss",
                       .where = name,
                       .got = std::to_string(plan.num_samples) + " samples",
                       .wanted = "a multiple of " + std::to_string(plan.datums_per_term)});
}

// What all ranks must have in common.
struct CommonPlan {
  int64_t num_samples, datums_per_term, per_token;
  double weight_total, divisor, lr;
  bool operator==(const CommonPlan&) const = default;

  std::string text() const {
    return std::to_string(num_samples) + " samples in terms of " + std::to_string(datums_per_term) +
           (per_token ? ", weights of " + std::to_string(weight_total) : "") + ", learning rate " + std::to_string(lr);
  }
};

}  // namespace

OpenStep::OpenStep(const StepPlan& plan, const LaneRange& lanes, std::string name)
    : plan_(plan), name_(std::move(name)) {
  require_plan(plan_, name_);
  own_ = samples_of(lanes, terms());
  own_ = {.begin = own_.begin * plan_.datums_per_term, .end = own_.end * plan_.datums_per_term};
}

size_t OpenStep::samples_in_lanes(size_t count, int lanes, int64_t max_lanes) const {
  size_t i = 0;
  for (int64_t touched = 0, last = -1; i < count; i += static_cast<size_t>(plan_.datums_per_term)) {
    const int lane = lane_of(term_of(next() + static_cast<int64_t>(i)), terms(), lanes);
    if (lane != last && ++touched > max_lanes) break;
    last = lane;
  }
  return i;
}

void OpenStep::require_room(int64_t datums, const Loss& loss) const {
  const int64_t left = own_.end - next();
  if (datums > left)
    throw ConfigError({.what = "more samples than the step was opened for",
                       .where = name_,
                       .got = std::to_string(datums),
                       .wanted = "at most " + std::to_string(left) + " more"});
  const int64_t per_term = datums_per_term(loss);
  if (per_term != plan_.datums_per_term || datums % per_term != 0)
    throw ConfigError(
        {.what = "datums of a term belong in one call, and the plan says how many they are",
         .where = name_,
         .got = std::to_string(datums) + " samples, planned in terms of " + std::to_string(plan_.datums_per_term),
         .wanted = "a multiple of " + std::to_string(per_term)});
}

void OpenStep::require_complete() const {
  if (next() == own_.end) return;
  throw ConfigError({.what = "the step is not complete",
                     .where = name_,
                     .got = std::to_string(values_.size()) + " samples",
                     .wanted = std::to_string(own_.size()),
                     .attempt = "forward_backward on the others"});
}

void OpenStep::require_same_plans(parallel::Group& group, double lr) const {
  const CommonPlan mine{.num_samples = plan_.num_samples,
                        .datums_per_term = plan_.datums_per_term,
                        .per_token = plan_.per_token,
                        .weight_total = plan_.weight_total,
                        .divisor = plan_.divisor,
                        .lr = lr};
  const std::vector<CommonPlan> all = parallel::gather_values(group, std::span(&mine, 1));
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw ConfigError({.what = "the ranks have different plans of one step",
                         .where = name_ + ", rank " + std::to_string(rank),
                         .got = all[rank].text(),
                         .wanted = all[0].text() + ", as rank 0"});
}

StepReport OpenStep::report(parallel::Group& group, double lr) const {
  require_same_plans(group, lr);
  StepReport report;
  double weight = 0;
  int64_t with_weight = 0;
  for (const SampleValues& sample : parallel::gather_values(group, std::span(values_))) {
    report.loss += sample.loss;
    report.metrics.add(sample.metrics);
    report.tokens += sample.tokens;
    weight += sample.weight;
    with_weight += sample.weight > 0 ? 1 : 0;
  }
  if (plan_.per_token && !(std::abs(weight - plan_.weight_total) <= kWeightTolerance * weight))
    throw ConfigError({.what = "the step's weights are not those of its plan",
                       .where = name_,
                       .got = std::to_string(weight),
                       .wanted = std::to_string(plan_.weight_total)});
  // By sample the means were taken over all of them; the others have nothing that could be measured.
  if (!plan_.per_token && with_weight > 0 && with_weight < plan_.num_samples)
    report.metrics.scale_means(static_cast<double>(plan_.num_samples) / static_cast<double>(with_weight));
  return report;
}

}  // namespace lockstep::train
