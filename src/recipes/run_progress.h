// How far a rollout is, for the terminal, and whether somebody wants the run to stop.
#pragma once

#include <cstdint>

#include "recipes/run_log.h"
#include "recipes/training_run.h"
#include "rl/parts.h"

namespace lockstep::recipes {

// For the thread of the run.
class RunProgress {
 public:
  // `total`: rollouts. All references outlive it.
  RunProgress(RunLog& log, TrainingRun& run, const Control& control, int64_t total)
      : log_(log), run_(run), control_(control), total_(total) {}

  void report(int64_t rollout, const char* what, int64_t done, int64_t of);
  rl::Watch watch(int64_t rollout, const char* what);
  // While another thread samples: asks this process alone. Throws Cancelled.
  void stop_if_interrupted() const;

 private:
  RunLog& log_;
  TrainingRun& run_;
  const Control& control_;
  const int64_t total_;
};

}  // namespace lockstep::recipes
