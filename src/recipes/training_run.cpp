#include "recipes/training_run.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "core/utf8.h"
#include "recipes/steps.h"
#include "train/train_step.h"

namespace lockstep::recipes {

TrainingRun::TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                         const TrainingOptions& training, const SaveOptions& save, const Base& base, Stream& stream,
                         const Control& control, OrderedJson settings, float temperature,
                         const std::optional<EnginePlan>& engine)
    : optimizer_(optimizer),
      training_(training),
      save_(save),
      base_(base),
      control_(control),
      settings_(std::move(settings)) {
  std::optional<Resumed> resumed = resume(save, adapter, settings_, base, control);
  const lora::AdapterVersion start =
      resumed ? resumed->adapter : starting_adapter(adapter, base, training.seed, control);
  describe_adapter(start, base, control);
  if (start.layout->config.use_dora && adapter.config.dropout > 0)
    *control.info << "note    DoRA with dropout: inputs of A are dropped out, those of W are not (PEFT also drops out a "
                     "part of W x; the mean is the same)\n";
  memory_ = plan_memory(base, *start.layout, training, engine, stream.device());
  require_fit(memory_);
  const train::TrainerOptions options{.beta1 = optimizer.beta1,
                                      .beta2 = optimizer.beta2,
                                      .eps = optimizer.eps,
                                      .weight_decay = optimizer.weight_decay,
                                      .clip_grad = optimizer.clip_grad,
                                      .max_tokens = memory_.max_tokens,
                                      .recompute = memory_.recompute,
                                      .temperature = temperature,
                                      .dropout = static_cast<float>(adapter.config.dropout),
                                      .lr_ratio = optimizer.loraplus_lr_ratio,
                                      .seed = training.seed};
  trainer_ = std::make_unique<train::Trainer>(base.model, start.layout, start.weights, options, stream);
  version_ = start.policy.version;
  if (resumed) {
    iteration_ = resumed->iteration;
    data_position_ = resumed->data_position;
    evaluations_ = resumed->evaluations;
    if (fs::same_place(save.load, save.save)) saved_iteration_ = iteration_;
    trainer_->restore(resumed->optimizer_steps, std::move(resumed->first_moment), std::move(resumed->second_moment));
    steps_at_iteration_ = trainer_->steps();
  } else if (keeps() && checkpoint::latest_iteration(save.save)) {
    *control.info << fmt::format(
        "note    {} holds checkpoints of an earlier run; this fresh run replaces them as it "
        "saves (SaveOptions::load {} would resume it)\n",
        save.save, save.save);
  }
  if (!keeps()) *control.info << "note    no SaveOptions::save: the trained adapter will not be kept\n";
  if (keeps() && valid_utf8_prefix(base.name) != base.name.size())
    *control.info
        << "note    the path of Base::path is no UTF-8: what is saved names it with U+FFFD for those bytes\n";
}

void TrainingRun::set_schedule(int64_t optimizer_steps) {
  schedule_ = optimizer_.schedule;
  schedule_.decay_steps = optimizer_.decay_steps.value_or(optimizer_steps);
  if (optimizer_.warmup_fraction > 0)
    schedule_.warmup_steps =
        static_cast<int64_t>(std::llround(optimizer_.warmup_fraction * static_cast<double>(schedule_.decay_steps)));
  schedule_.wsd_decay_steps = optimizer_.wsd_decay_steps.value_or(0);
  check_warmup(optimizer_, optimizer_steps);
}

double TrainingRun::learning_rate() const {
  return schedule_.at(trainer_->steps());
}

train::StepReport TrainingRun::step(std::span<const train::Datum> datums, const train::Loss& loss,
                                    const std::function<void(int64_t)>& on_progress) {
  const auto between = [&](int64_t done) {
    on_progress(done);
    if (control_.interrupted()) throw Cancelled({.what = "interrupted during a step"});
  };
  const train::Reduction reduction{training_.per_token_loss ? train::ReductionKind::token_mean
                                                            : train::ReductionKind::sample_mean};
  return interruptible(
      [&] { return train::train_step(*trainer_, datums, loss, learning_rate(), reduction, between); });
}

void TrainingRun::completed(int64_t rows) {
  ++iteration_;
  data_position_ += rows;
  steps_at_iteration_ = trainer_->steps();
}

void TrainingRun::save() {
  if (!keeps() || saved_iteration_ == iteration_) return;
  save_failed_ = true;
  save_training(save_, base_, *trainer_, {iteration_, version_, data_position_, settings_, evaluations_});
  save_failed_ = false;
  saved_iteration_ = iteration_;
}

void TrainingRun::iterate(const std::function<void()>& iterations) {
  try {
    iterations();
  } catch (...) {
    save_after_failure();
    throw;
  }
}

void TrainingRun::save_after_failure() {
  if (!keeps() || iteration_ == 0 || saved_iteration_ == iteration_ || save_failed_) return;
  if (!trainer_->whole() || trainer_->steps() != steps_at_iteration_) {
    *control_.info << fmt::format("note    iteration {} is not saved: the one that failed had begun to change it\n",
                                  iteration_);
    return;
  }
  try {
    save();
    *control_.info << fmt::format("saved   iteration {} before the failure; SaveOptions::load {} goes on from there\n", iteration_,
                                  save_.save);
  } catch (const Error& error) {
    *control_.info << fmt::format("note    iteration {} could not be saved: {}: {} {}\n", iteration_,
                                  error.fault().what, error.fault().where, error.fault().got);
  } catch (const std::exception& error) {
    *control_.info << fmt::format("note    iteration {} could not be saved: {}\n", iteration_, error.what());
  }
}

void TrainingRun::save_if_due() {
  if (save_.save_interval > 0 && iteration_ % save_.save_interval == 0) save();
}

void TrainingRun::stop_interrupted() {
  if (!keeps())
    throw Cancelled(
        {.what = fmt::format("interrupted after iteration {}", iteration_), .got = "no SaveOptions::save, so nothing is kept"});
  if (iteration_ == 0)
    throw Cancelled({.what = "interrupted before the first iteration was done", .attempt = "run the command again"});
  save();
  throw Cancelled({.what = fmt::format("interrupted; iteration {} is saved", iteration_),
                   .where = save_.save,
                   .attempt = fmt::format("the same command with SaveOptions::load {} to resume bit for bit", save_.save)});
}

void TrainingRun::finish() {
  if (!keeps() || iteration_ == 0) return;
  save();
  const fs::Path where =
      fs::Path(save_.save) / checkpoint::iteration_directory_name(iteration_) / checkpoint::kAdapterDirectory;
  *control_.info << fmt::format("adapter {}\n", where.string());
}

}  // namespace lockstep::recipes
