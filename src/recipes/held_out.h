// Held-out sets of a supervised run: what they say, which checkpoint is best, when to stop.
#pragma once

#include <deque>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "recipes/preference.h"
#include "recipes/training_rows.h"
#include "recipes/training_run.h"
#include "train/evaluation.h"

namespace lockstep::recipes {

// What the evaluations of a run have said so far; lies in its checkpoints.
struct BestSoFar {
  int64_t evaluated = -1;      // iteration of the last evaluation
  std::optional<double> loss;  // the best, of iteration 1 or later
  int64_t iteration = 0;       // where it was
  int64_t stale = 0;           // evaluations since then that were not better by more than the threshold
  // What it is measured on: the name of the set and the digest of its rows; empty: nobody has said so yet.
  std::string set, digest;

  // What follows is measured on this set. Where its rows are others than those before, nothing can be compared with
  // them: all begins anew, `out` says so, and true is returned.
  bool measure_on(const std::string& name, const std::string& rows, std::ostream& out);
  // True if it is the best so far.
  bool add(int64_t at, double value, double threshold);

  OrderedJson json() const;
  static BestSoFar from(const OrderedJson& json, const std::string& where);  // null: nothing yet. FormatError
};

class HeldOut {
 public:
  // `preference` outlives this.
  HeldOut(const SftOptions& options, const Base& base, const PreferenceInputs& preference, const Control& control);

  void describe(std::ostream& out) const;
  bool empty() const { return sets_.empty(); }
  const std::vector<EvalSet>& names() const { return options_.eval_sets; }
  size_t deciding() const;  // the set that says which checkpoint is best
  const std::string& digest(size_t set) const { return sets_[set].digest(); }  // of its tokens and targets
  // One set under the current weights. Collective. Calls on_progress with the rows done, on all ranks at the same
  // places; it may throw to stop.
  train::Evaluation evaluate(size_t set, TrainingRun& run, const std::function<void(int64_t, int64_t)>& on_progress);

 private:
  const SftOptions& options_;
  const PreferenceInputs& preference_;
  std::deque<TrainingRows> sets_;
};

}  // namespace lockstep::recipes
