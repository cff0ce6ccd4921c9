// What SFT and RL share: a Trainer that starts fresh or resumes, steps that can be interrupted, checkpoints.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "recipes/adapter.h"
#include "recipes/options.h"
#include "train/trainer.h"

namespace lockstep::recipes {

class TrainingRun {
 public:
  // `temperature`: of the log-probs (RL: the rollout's).
  TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
              const TrainingOptions& training, const SaveOptions& save, const Base& base, Stream& stream,
              const Control& control, float temperature = 1);

  // Fixes warm-up and decay over `optimizer_steps` steps of the whole run.
  void set_schedule(int64_t optimizer_steps);
  double learning_rate() const;  // of the next step

  // One optimizer step over the batch, in pieces between which an interrupt is noticed: nothing has changed then, the last completed
  // iteration is saved, and Cancelled says how to resume.
  train::StepReport step(std::span<const train::Datum> datums, const train::Loss& loss,
                         const std::function<void(int64_t done)>& on_progress, bool interruptible = true);

  int64_t iteration() const { return iteration_; }  // completed
  int64_t version() const { return version_; }
  void set_version(int64_t version) { version_ = version; }
  void completed(int64_t iteration) { iteration_ = iteration; }
  void save_if_due(int64_t iteration, int64_t total);
  // Saves the last completed iteration (if --save) and throws Cancelled with how to go on.
  [[noreturn]] void stop_interrupted();
  void say_where(const Control& control) const;  // where the adapter lies

  train::Trainer& trainer() { return *trainer_; }

 private:
  void save();

  const OptimizerOptions& optimizer_;
  const TrainingOptions& training_;
  const SaveOptions& save_;
  const Base& base_;
  const Control& control_;
  train::Schedule schedule_;
  std::unique_ptr<train::Trainer> trainer_;
  int64_t iteration_ = 0, saved_iteration_ = -1, version_ = 0;
};

}  // namespace lockstep::recipes
