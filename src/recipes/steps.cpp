#include "recipes/steps.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

namespace lockstep::recipes {

TrainingRun::TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                         const TrainingOptions& training, const SaveOptions& save, const Base& base, Stream& stream,
                         const Control& control, float temperature)
    : optimizer_(optimizer), training_(training), save_(save), base_(base), control_(control) {
  std::optional<Resumed> resumed = resume(save, adapter.config, base, control);
  if (resumed && !adapter.adapter_path.empty())
    *control.info << "note    the checkpoint of --load goes before --lora-adapter-path\n";
  const Adapter start = resumed ? resumed->adapter : starting_adapter(adapter, base, training.seed);
  describe_adapter(start, base, control);
  const train::TrainerOptions options{.beta1 = static_cast<float>(optimizer.beta1),
                                      .beta2 = static_cast<float>(optimizer.beta2),
                                      .eps = static_cast<float>(optimizer.eps),
                                      .weight_decay = static_cast<float>(optimizer.weight_decay),
                                      .clip_grad = static_cast<float>(optimizer.clip_grad),
                                      .max_tokens = training.max_tokens,
                                      .recompute = training.recompute,
                                      .temperature = temperature,
                                      .dropout = static_cast<float>(adapter.config.dropout),
                                      .seed = training.seed};
  trainer_ = std::make_unique<train::Trainer>(base.model, start.layout, start.weights, options, stream);
  version_ = start.version;
  if (resumed) {
    iteration_ = saved_iteration_ = resumed->iteration;
    trainer_->restore(resumed->optimizer_steps, std::move(resumed->first_moment), std::move(resumed->second_moment));
  }
  if (save.save.empty()) *control.info << "note    no --save: the trained adapter will not be kept\n";
  if (!resumed && !save.save.empty() && checkpoint::latest_iteration(save.save))
    *control.info << fmt::format("note    {} holds checkpoints of an earlier run; this fresh run replaces them as it "
                                 "saves (--load {} would resume it)\n", save.save, save.save);
}

void TrainingRun::set_schedule(int64_t optimizer_steps) {
  schedule_ = optimizer_.schedule;
  schedule_.decay_steps = optimizer_.decay_steps.value_or(optimizer_steps);
  if (optimizer_.warmup_fraction > 0)
    schedule_.warmup_steps =
        static_cast<int64_t>(std::llround(optimizer_.warmup_fraction * static_cast<double>(schedule_.decay_steps)));
}

double TrainingRun::learning_rate() const { return schedule_.at(trainer_->steps()); }

train::StepReport TrainingRun::step(std::span<const train::Datum> datums, const train::Loss& loss,
                                    const std::function<void(int64_t)>& on_progress, bool interruptible) {
  train::StepPlan plan{.num_samples = static_cast<int64_t>(datums.size()), .weight_total = 0,
                       .per_token = training_.per_token_loss};
  for (const train::Datum& datum : datums) plan.weight_total += datum.weight_sum();
  trainer_->begin_step(plan);
  size_t begin = 0;
  while (begin < datums.size()) {
    // Pieces as large as a micro-batch: the split changes no bit, and an interrupt is noticed between them.
    size_t end = begin;
    for (int64_t tokens = 0; end < datums.size(); ++end) {
      tokens += datums[end].size();
      if (end > begin && tokens > training_.max_tokens) break;
    }
    trainer_->forward_backward(datums.subspan(begin, end - begin), loss);
    begin = end;
    on_progress(static_cast<int64_t>(begin));
    if (interruptible && control_.interrupted()) {
      trainer_->abandon_step();
      stop_interrupted();
    }
  }
  return trainer_->optim_step(static_cast<float>(learning_rate()));
}

void TrainingRun::save() {
  save_training(save_, base_, *trainer_, iteration_, version_, Json::object());
  saved_iteration_ = iteration_;
}

void TrainingRun::save_if_due(int64_t iteration, int64_t total) {
  if (save_.save.empty()) return;
  if (iteration == total || (save_.save_interval > 0 && iteration % save_.save_interval == 0)) save();
}

void TrainingRun::stop_interrupted() {
  if (save_.save.empty())
    throw Cancelled({.what = fmt::format("interrupted after iteration {}", iteration_),
                     .got = "no --save, so nothing is kept"});
  if (iteration_ > 0 && saved_iteration_ != iteration_) save();
  if (iteration_ == 0)
    throw Cancelled({.what = "interrupted before the first iteration was done", .attempt = "run the command again"});
  throw Cancelled({.what = fmt::format("interrupted; iteration {} is saved", iteration_), .where = save_.save,
                   .attempt = fmt::format("the same command with --load {} to resume bit for bit", save_.save)});
}

void TrainingRun::say_where(const Control& control) const {
  if (save_.save.empty() || saved_iteration_ <= 0) return;
  const fs::Path where = fs::Path(save_.save) / checkpoint::iteration_directory_name(saved_iteration_) / "lora_adapter";
  *control.info << fmt::format("adapter {}\n", where.string());
}

}  // namespace lockstep::recipes
