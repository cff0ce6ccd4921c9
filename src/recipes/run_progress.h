// How far a rollout is, for the terminal, and whether somebody wants the run to stop.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "recipes/run_log.h"
#include "recipes/training_run.h"
#include "rl/parts.h"

namespace lockstep::recipes {

// For the thread of the run.
class RunProgress {
 public:
  // `total`: rollouts. All references outlive it.
  // `waiting`: what is to be done now and then while another thread samples.
  RunProgress(RunLog& log, TrainingRun& run, int64_t total, std::function<void()> waiting)
      : log_(log), run_(run), total_(total), waiting_(std::move(waiting)) {}

  void report(int64_t rollout, const char* what, int64_t done, int64_t of);
  rl::Watch watch(int64_t rollout, const char* what);
  // While another thread samples. Throws Cancelled, and what Group::check throws.
  void while_sampling() const;

 private:
  RunLog& log_;
  TrainingRun& run_;
  const int64_t total_;
  const std::function<void()> waiting_;
};

}  // namespace lockstep::recipes
