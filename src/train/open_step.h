// The step that a Trainer has open: its plan, the samples that this rank takes, and their losses and metrics.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "train/lane_range.h"
#include "train/step.h"

namespace lockstep::train {

struct SampleValues {
  double loss = 0, weight = 0;  // share of the step's loss; sum of row weights
  int64_t tokens = 0;
  Metrics metrics;
};

class OpenStep {
 public:
  // `name` is for messages. ConfigError for a plan that no step can have.
  OpenStep(const StepPlan& plan, const LaneRange& lanes, std::string name);

  const StepPlan& plan() const { return plan_; }
  const std::string& name() const { return name_; }
  const SampleRange& own() const { return own_; }  // samples of the step that this rank takes
  int64_t next() const { return own_.begin + static_cast<int64_t>(values_.size()); }  // the sample that comes next
  int64_t terms() const { return plan_.num_samples / plan_.datums_per_term; }
  int64_t term_of(int64_t sample) const { return sample / plan_.datums_per_term; }

  // How many of the next `count` samples lie in the first `max_lanes` lanes of `lanes` that they touch, in whole terms.
  size_t samples_in_lanes(size_t count, int lanes, int64_t max_lanes) const;
  // ConfigError unless this many more datums of the loss fit the plan now.
  void require_room(int64_t datums, const Loss& loss) const;
  void add(const SampleValues& sample) { values_.push_back(sample); }
  void require_complete() const;  // ConfigError unless all samples of this rank were consumed

  // Collective; every rank's part is complete. The values of all samples, added in sample order on every rank, never
  // first by rank: floating-point sums of sums would differ. ConfigError, the same on every rank, if a rank has another
  // plan or learning rate than rank 0, or (per_token) the weights are not those of the plan. Without grad_norm.
  StepReport report(parallel::Group& group, double lr) const;

 private:
  void require_same_plans(parallel::Group& group, double lr) const;

  StepPlan plan_;
  SampleRange own_;
  std::string name_;
  std::vector<SampleValues> values_;
};

}  // namespace lockstep::train
