// What SFT and RL share: a Trainer that starts fresh or resumes, steps that can be interrupted, checkpoints.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "recipes/adapter.h"
#include "recipes/memory_plan.h"
#include "recipes/options.h"
#include "train/trainer.h"

namespace lockstep::recipes {

class TrainingRun {
 public:
  // `settings`: flags and values that decide which data a step sees and how it is drawn; kept in every checkpoint, and
  // a resumed run must have the same (ConfigError). `temperature`: of the log-probs (RL: the rollout's). `engine`: the
  // engine that shares the device. ResourceError when it cannot all fit a GPU.
  TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer, const TrainingOptions& training,
              const SaveOptions& save, const Base& base, Stream& stream, const Control& control, OrderedJson settings,
              float temperature = 1, const std::optional<EnginePlan>& engine = {});

  // Fixes warm-up and decay over `optimizer_steps` steps of the whole run.
  void set_schedule(int64_t optimizer_steps);
  const train::Schedule& schedule() const { return schedule_; }
  double learning_rate() const;  // of the next step

  // What `work` returns; where it throws Cancelled, nothing of the open iteration has changed the adapter: saves the
  // last completed iteration (if --save) and throws Cancelled with how to go on.
  template <class Work>
  auto interruptible(const Work& work) {
    try {
      return work();
    } catch (const Cancelled&) {
      stop_interrupted();
    }
  }
  // One optimizer step over the batch; between its micro-batches an interrupt is noticed, as by interruptible().
  train::StepReport step(std::span<const train::Datum> datums, const train::Loss& loss,
                         const std::function<void(int64_t done)>& on_progress);

  int64_t iteration() const { return iteration_; }  // completed
  int64_t version() const { return version_; }
  void set_version(int64_t version) { version_ = version; }
  int64_t data_position() const { return data_position_; }  // rows read by the completed iterations
  void completed(int64_t rows);                             // one more iteration is done and has read this many
  void save_if_due();
  void save();  // the last completed iteration, unless --save holds it or there is no --save
  bool keeps() const { return !save_.save.empty(); }
  int64_t saved_iteration() const { return saved_iteration_; }  // the newest that --save holds; 0: none of this run
  // Runs the iterations of the run. Whatever ends them early, be it a row, the device, the disk or an interrupt, goes
  // on to the caller, after the last completed iteration is saved; if that fails too, or the step that failed has begun
  // to change the adapter, a line says so.
  void iterate(const std::function<void()>& iterations);
  // After the last iteration: saves it unless --save holds it already, and says where the adapter lies.
  void finish();

  // Kept in checkpoints from now on, and what the checkpoint that this run resumed kept (null: nothing).
  void set_evaluations(OrderedJson evaluations) { evaluations_ = std::move(evaluations); }
  const OrderedJson& evaluations() const { return evaluations_; }

  train::Trainer& trainer() { return *trainer_; }
  const MemoryPlan& memory() const { return memory_; }

 private:
  [[noreturn]] void stop_interrupted();
  void save_after_failure();

  const OptimizerOptions& optimizer_;
  const TrainingOptions& training_;
  const SaveOptions& save_;
  const Base& base_;
  const Control& control_;
  const OrderedJson settings_;
  OrderedJson evaluations_;
  train::Schedule schedule_;
  MemoryPlan memory_;
  std::unique_ptr<train::Trainer> trainer_;
  int64_t iteration_ = 0, data_position_ = 0, version_ = 0;
  int64_t saved_iteration_ = 0;
  int64_t steps_at_iteration_ = 0;  // of the optimizer, when the last iteration was completed
  bool save_failed_ = false;
};

}  // namespace lockstep::recipes
