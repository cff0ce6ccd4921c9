// What SFT and RL share: a Trainer that starts fresh or resumes, steps that can be interrupted, checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group.h"
#include "recipes/checkpoint_writer.h"
#include "recipes/memory_plan.h"
#include "recipes/resume.h"
#include "recipes/training_snapshot.h"
#include "train/not_finite.h"

namespace lockstep::recipes {

class TrainingRun {
 public:
  // `settings`: what of the recipe decides its results (recipes/run_settings.h), beside what all runs share; kept in
  // every checkpoint, and a resumed run must have the same (ConfigError). `temperature`: of the log-probs (RL: the
  // rollout's). `group`: the ranks that train together, which outlives the run; none: this process alone. Rank 0 alone
  // writes checkpoints. ResourceError when it and what lies beside it cannot all fit a GPU.
  TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer, const TrainingOptions& training,
              const SaveOptions& save, const Base& base, Stream& stream, const Control& control, OrderedJson settings,
              float temperature = 1, const BesideTrainer& beside = {}, parallel::Group* group = nullptr);

  // Fixes warm-up and decay over `optimizer_steps` steps of the whole run. ConfigError if they are not those of the
  // resumed run, without an override.
  void set_schedule(int64_t optimizer_steps);
  const train::Schedule& schedule() const { return schedule_; }
  double learning_rate() const;  // of the next step

  // What `work` returns; where it throws Cancelled, nothing of the open iteration has changed the adapter: saves the
  // last completed iteration (if --save) and throws Cancelled with how to go on. The same where another rank has ended
  // by the interrupt before this one noticed it.
  template <class Work>
  auto interruptible(const Work& work) {
    try {
      return work();
    } catch (const Cancelled&) {
      if (group_->failed() && !group_->interrupted()) throw;  // not all ranks came to a call in time
      stop_interrupted();
    } catch (const parallel::PeerFailed& error) {
      if (!is_interrupt(error)) throw;
      stop_interrupted();
    }
  }
  // One optimizer step over the batch; between its micro-batches an interrupt is noticed, as by interruptible().
  // Nothing: it was abandoned.
  std::optional<train::StepReport> step(std::span<const train::Datum> datums, const train::Loss& loss,
                                        const std::function<void(int64_t done)>& on_progress);

  // Whether this process was asked to stop, or another rank was; tells the others. Throws what Group::check throws.
  bool interrupted();
  // Collective, where nothing of the open iteration has changed the adapter: throws Cancelled on all ranks if one was
  // asked to stop.
  void stop_if_interrupted(const char* during);
  // ConfigError on every rank unless all ranks begin from the same settings, state and weights. Collective.
  void require_same_start();
  parallel::Group& group() { return *group_; }

  // Counts a step that was abandoned and prints why. DataError naming sample and module when it was one more than
  // TrainingOptions::max_skipped_steps of the whole run. `trainer`: whose step it was; nullptr: the run's.
  void abandoned(const train::NotFiniteError& error, std::span<const train::Datum> datums, const train::Loss& loss,
                 train::Trainer* trainer = nullptr);
  int64_t skipped_steps() const { return skipped_steps_; }  // that were abandoned

  int64_t iteration() const { return iteration_; }  // completed
  int64_t version() const { return version_; }
  void set_version(int64_t version) { version_ = version; }
  // That a run which goes on from a checkpoint is not promised to be this one bit for bit: others sample for it, or
  // time decides which samples it is trained on.
  void resumes_inexactly() { resumes_exactly_ = false; }
  int64_t data_position() const { return data_position_; }  // rows read by the completed iterations
  // One more iteration is done and has read this many rows. The checkpoint of an earlier one is on the disk then.
  void completed(int64_t rows);
  // Begins to save the last completed iteration if it is its turn; the disk is waited for by the next iteration. If
  // somebody asked for it (Control::save_requested, SaveOptions::trigger_sentinel), it is on the disk on return.
  void save_if_due();
  // The last completed iteration, unless --save holds it or there is no --save; returns when it does. It is saved again
  // where its parts say more since: samples of the iteration that is open, which may have been slow or dear to grade.
  void save();
  // The same for an iteration that is the best so far: the marker names it, and what retention leaves no more is
  // removed.
  void save_best();
  // The marker of the best checkpoint names this iteration, if --save holds it, and retention leaves it alone.
  void mark_best(int64_t iteration);
  bool keeps() const { return !save_.save.empty() && control_.rank == 0; }
  int64_t saved_iteration() const { return saved_iteration_; }  // the newest that --save holds; 0: none of this run
  // Runs the iterations of the run. Whatever ends them early, be it a row, the device, the disk or an interrupt, goes
  // on to the caller, after the last completed iteration is saved; if that fails too, or the step that failed has begun
  // to change the adapter, a line says so.
  void iterate(const std::function<void()>& iterations);
  // After the last iteration: saves it unless --save holds it already, and says where the adapter lies. CheckError,
  // when that is done, if steps of this process were abandoned and not one was taken; on rank 0 alone, which saves.
  void finish();

  // Kept in checkpoints from now on, and what the checkpoint that this run resumed kept (null: nothing).
  void set_evaluations(OrderedJson evaluations) { evaluations_ = std::move(evaluations); }
  const OrderedJson& evaluations() const { return evaluations_; }

  // --- Parts: what a recipe adds to its checkpoints, under names of letters, digits, '.', '_' and '-'. ---
  // `part` is called whenever a checkpoint is made, at the end of an iteration, on the thread of the run; what its
  // tensors point to stays as it is as long as KeptPart::memory lives. An earlier part of the name is replaced. One
  // whose JSON is null is not written.
  void keep(const std::string& name, std::function<KeptPart()> part);
  // What the checkpoint that this run goes on from kept; nullopt: nothing, or a fresh run. Its tensors live until
  // iterate().
  std::optional<checkpoint::StatePart> resumed_part(const std::string& name) const;
  // The same for an adapter, which is a policy of the checkpoint; placed on the base's device. Not the actor's.
  void keep_policy(const std::string& name, std::function<lora::AdapterVersion()> adapter);
  // For several, whose number changes: asked once for each checkpoint, after all of its parts are made, so that they
  // can be what the parts need. They are the policies "NAME.0", "NAME.1" ...
  void keep_policies(const std::string& name, std::function<std::vector<lora::AdapterVersion>()> adapters);
  std::optional<lora::AdapterVersion> resumed_policy(const std::string& name) const;
  std::vector<lora::AdapterVersion> resumed_policies(const std::string& name) const;  // as kept by keep_policies()
  // A second trainer, such as a critic's: its adapter as a policy, its optimizer as the part "NAME.optimizer", which is
  // restored if the run was resumed. The trainer has the resumed policy's weights; it outlives the run's saves.
  void keep_trainer(const std::string& name, train::Trainer& trainer);
  // Retention leaves this iteration's checkpoint alone until `name` reads another one, or none.
  void still_reads(const std::string& name, std::optional<int64_t> iteration);

  train::Trainer& trainer() { return *trainer_; }
  const train::TrainerOptions& trainer_options() const { return trainer_options_; }  // of trainer()
  const MemoryPlan& memory() const { return memory_; }

 private:
  void restore();
  void describe_saving();
  bool is_interrupt(const parallel::PeerFailed& error) const;  // another rank's, which this one can stop at, too
  [[noreturn]] void stop_interrupted();
  void save_after_failure();
  bool has_changed() const;  // since the last iteration was completed
  void begin_save();
  void finish_save();
  bool save_requested() const;
  std::set<int64_t> still_read() const;  // by anybody
  TrainingSnapshot snapshot();
  void add_parts(TrainingSnapshot& snapshot);  // and the policies beside the actor
  std::string parts_digest() const;            // of what the parts say now
  void leave_resumed();                        // its checkpoint is not read any more

  const OptimizerOptions& optimizer_;
  const TrainingOptions& training_;
  const SaveOptions& save_;
  const Base& base_;
  Stream& stream_;
  const Control& control_;
  std::unique_ptr<parallel::Group> alone_;  // where no group was given
  parallel::Group* const group_;
  OrderedJson settings_;
  OrderedJson evaluations_;
  std::map<std::string, std::function<KeptPart()>> parts_;
  std::map<std::string, std::function<lora::AdapterVersion()>> policies_;
  std::map<std::string, std::function<std::vector<lora::AdapterVersion>()>> several_policies_;
  std::map<std::string, int64_t> read_;  // iterations that are still read, by whom
  std::optional<Resumed> resumed_;       // its checkpoint: until iterate()
  train::Schedule schedule_;
  MemoryPlan memory_;
  train::TrainerOptions trainer_options_;
  std::unique_ptr<train::Trainer> trainer_;
  // Trainers that keep_trainer() was told of, and their steps when the last iteration was completed.
  std::vector<std::pair<train::Trainer*, int64_t>> beside_;
  int64_t iteration_ = 0, data_position_ = 0, version_ = 0, skipped_steps_ = 0;
  std::unique_ptr<CheckpointWriter> writer_;
  SnapshotMemory snapshot_memory_;
  std::optional<int64_t> saving_;  // the iteration that the writer is at
  int64_t saved_iteration_ = 0;
  std::string saved_parts_;                                    // parts_digest() of its checkpoint
  int64_t steps_at_iteration_ = 0, skipped_at_iteration_ = 0;  // when the last iteration was completed
  int64_t skipped_at_start_ = 0;                               // of the runs before the one that this one goes on from
  bool took_step_ = false;                                     // in this process, in an iteration that is completed
  bool save_failed_ = false, interrupt_saved_ = false, resumes_exactly_ = true;
};

}  // namespace lockstep::recipes
