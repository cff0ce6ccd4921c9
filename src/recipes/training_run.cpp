#include "recipes/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "core/device_facts.h"
#include "core/hash.h"
#include "core/transfer.h"
#include "core/utf8.h"
#include "parallel/agree.h"
#include "parallel/connect.h"
#include "parallel/gather.h"
#include "recipes/run_checks.h"
#include "recipes/run_settings.h"
#include "recipes/steps.h"
#include "train/train_step.h"

namespace lockstep::recipes {

namespace {

OrderedJson all_settings(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                         const TrainingOptions& training, const OrderedJson& settings) {
  OrderedJson all = common_settings(adapter, optimizer, training);
  all.update(settings);
  return all;
}

std::vector<int64_t> saved_until(const SaveOptions& options, int64_t iteration) {
  std::vector<int64_t> saved = checkpoint::saved_iterations(options.save);
  std::erase_if(saved, [&](int64_t other) { return other > iteration; });
  return saved;
}

}  // namespace

TrainingRun::TrainingRun(const AdapterOptions& adapter, const OptimizerOptions& optimizer,
                         const TrainingOptions& training, const SaveOptions& save, const Base& base, Stream& stream,
                         const Control& control, OrderedJson settings, float temperature, const BesideTrainer& beside,
                         parallel::Group* group)
    : optimizer_(optimizer),
      training_(training),
      save_(save),
      base_(base),
      stream_(stream),
      control_(control),
      alone_(group == nullptr ? parallel::solo() : nullptr),
      group_(group == nullptr ? alone_.get() : group),
      settings_(all_settings(adapter, optimizer, training, settings)),
      resumed_(resume(save, adapter, settings_, base, control)) {
  const lora::AdapterVersion start =
      resumed_ ? resumed_->adapter : starting_adapter(adapter, base, training.seed, control);
  describe_adapter(start, base, control);
  const double dropout = start.layout->config.dropout;
  settings_["--lora-dropout"] = dropout;
  if (start.layout->config.use_dora && dropout > 0)
    *control.info
        << "note    DoRA with dropout: inputs of A are dropped out, those of W are not (PEFT also drops out a "
           "part of W x; the mean is the same)\n";
  BesideTrainer planned = beside;
  planned.saves = !save.save.empty();
  memory_ = plan_memory(base, *start.layout, training, planned, stream.device());
  require_fit(memory_);
  trainer_options_ = {.beta1 = optimizer.beta1,
                      .beta2 = optimizer.beta2,
                      .eps = optimizer.eps,
                      .weight_decay = optimizer.weight_decay,
                      .clip_grad = optimizer.clip_grad,
                      .max_tokens = memory_.max_tokens,
                      .recompute = memory_.recompute,
                      .temperature = temperature,
                      .dropout = static_cast<float>(dropout),
                      .lr_ratio = optimizer.loraplus_lr_ratio,
                      .seed = training.seed,
                      .gradient_lanes = training.gradient_lanes,
                      .balance = training.balance};
  trainer_ =
      std::make_unique<train::Trainer>(base.model, start.layout, start.weights, trainer_options_, stream, *group_);
  version_ = start.policy.version;
  if (resumed_) restore();
  describe_saving();
}

void TrainingRun::restore() {
  iteration_ = resumed_->iteration;
  data_position_ = resumed_->data_position;
  skipped_steps_ = skipped_at_iteration_ = skipped_at_start_ = resumed_->skipped_steps;
  evaluations_ = resumed_->evaluations;
  if (fs::same_place(save_.load, save_.save) && !save_.finetune) saved_iteration_ = iteration_;
  if (resumed_->moments)
    trainer_->restore(resumed_->optimizer_steps, std::move(resumed_->moments->first),
                      std::move(resumed_->moments->second));
  steps_at_iteration_ = trainer_->steps();
  resumed_->adapter = {};
}

void TrainingRun::describe_saving() {
  if (!keeps()) {
    *control_.info << "note    no SaveOptions::save: the trained adapter will not be kept\n";
    return;
  }
  const bool goes_on = saved_iteration_ > 0;
  writer_ = std::make_unique<CheckpointWriter>(save_, goes_on ? saved_until(save_, iteration_) : std::vector<int64_t>(),
                                               control_);
  if (!goes_on && !checkpoint::saved_iterations(save_.save).empty())
    *control_.info << fmt::format(
        "note    {} holds checkpoints of an earlier run (SaveOptions::load {} would resume it); this fresh run "
        "replaces "
        "those of the iterations that it saves, the others stay\n",
        save_.save, save_.save);
  if (valid_utf8_prefix(base_.name) != base_.name.size())
    *control_.info
        << "note    the path of Base::path is no UTF-8: what is saved names it with U+FFFD for those bytes\n";
}

void TrainingRun::set_schedule(int64_t optimizer_steps) {
  schedule_ = schedule_of(optimizer_, optimizer_steps);
  const OrderedJson settings = schedule_settings(schedule_);
  if (resumed_ && resumed_->checkpoint != nullptr)
    require_same_settings(differences(resumed_->settings, settings, Compare::only_wanted), save_.overrides,
                          resumed_->where);
  settings_.update(settings);
}

void TrainingRun::still_reads(const std::string& name, std::optional<int64_t> iteration) {
  if (iteration)
    read_[name] = *iteration;
  else
    read_.erase(name);
}

std::set<int64_t> TrainingRun::still_read() const {
  std::set<int64_t> read;
  for (const auto& [name, iteration] : read_) read.insert(iteration);
  return read;
}

void TrainingRun::mark_best(int64_t iteration) {
  if (!keeps() || !fs::is_directory(fs::Path(save_.save) / checkpoint::iteration_directory_name(iteration))) return;
  checkpoint::mark_best(save_.save, iteration);
  still_reads("best", iteration);
}

void TrainingRun::save_best() {
  if (!keeps()) return;
  save();
  mark_best(iteration_);
  // Only now: had the run ended before, the marker would name a checkpoint that is gone.
  writer_->remove_superfluous(still_read());
}

double TrainingRun::learning_rate() const {
  return schedule_.at(trainer_->steps());
}

std::optional<train::StepReport> TrainingRun::step(std::span<const train::Datum> datums, const train::Loss& loss,
                                                   const std::function<void(int64_t)>& on_progress) {
  const auto between = [&](int64_t done) {
    on_progress(done);
    if (interrupted()) throw Cancelled({.what = "interrupted during a step"});
  };
  const train::Reduction reduction{training_.per_token_loss ? train::ReductionKind::token_mean
                                                            : train::ReductionKind::sample_mean};
  try {
    return interruptible(
        [&] { return train::train_step(*trainer_, datums, loss, learning_rate(), reduction, between); });
  } catch (const train::NotFiniteError& error) {
    abandoned(error, datums, loss);
    return std::nullopt;
  }
}

bool TrainingRun::interrupted() {
  if (control_.interrupted()) group_->interrupt();
  group_->check();
  return group_->interrupted();
}

void TrainingRun::stop_if_interrupted(const char* during) {
  // A rank may hear of it later than another, so all ask the same question at the same place.
  const uint8_t mine = interrupted() ? 1 : 0;
  const std::vector<uint8_t> all = parallel::gather_values(*group_, std::span(&mine, 1));
  if (std::ranges::find(all, uint8_t{1}) != all.end())
    throw Cancelled({.what = std::string("interrupted during ") + during});
}

void TrainingRun::require_same_start() {
  if (group_->size() == 1) return;
  parallel::Identity start;
  for (const auto& [name, value] : settings_.items()) start.emplace_back(name, json_text(value));
  const Buffer weights = host_copy(*trainer_->adapter().weights, stream_);
  Sha256 hash;
  hash.update(std::span(static_cast<const std::byte*>(weights.data()), weights.bytes()));
  start.emplace_back("the iteration that SaveOptions::load goes on from", std::to_string(iteration_));
  start.emplace_back("rows read so far", std::to_string(data_position_));
  start.emplace_back("optimizer steps so far", std::to_string(trainer_->steps()));
  start.emplace_back("weights of the adapter", hash.hex());
  parallel::require_same(*group_, start);
}

void TrainingRun::abandoned(const train::NotFiniteError& error, std::span<const train::Datum> datums,
                            const train::Loss& loss, train::Trainer* trainer) {
  ++skipped_steps_;
  Fault fault = error.fault();
  fault.where = fmt::format("iteration {}, {}", iteration_ + 1, fault.where);
  *control_.info << fmt::format("skip    {}: {} ({}); abandoned, {} of at most {}\n", fault.where, fault.what,
                                fault.got, skipped_steps_, training_.max_skipped_steps)
                 << std::flush;
  if (skipped_steps_ <= training_.max_skipped_steps) return;
  // It takes steps that only a trainer alone can give up; the rank that saw it has named the sample.
  const train::NotFinite found =
      group_->size() > 1 ? train::NotFinite{} : train::find_not_finite(trainer ? *trainer : *trainer_, datums, loss);
  fault.where += found.sample ? fmt::format("; by itself sample {} of the step", *found.sample) : "";
  fault.where += found.module.empty() ? "" : fmt::format(", gradient of {}", found.module);
  fault.wanted = fmt::format("at most {} steps that are not finite (TrainingOptions::max_skipped_steps)",
                             training_.max_skipped_steps);
  fault.attempt = "a smaller learning rate, or a look at that sample; the adapter is as it was before this step";
  throw DataError(std::move(fault));
}

void TrainingRun::completed(int64_t rows) {
  finish_save();
  took_step_ = took_step_ || has_changed();
  ++iteration_;
  data_position_ += rows;
  steps_at_iteration_ = trainer_->steps();
  for (auto& [trainer, steps] : beside_) steps = trainer->steps();
  skipped_at_iteration_ = skipped_steps_;
}

TrainingSnapshot TrainingRun::snapshot() {
  TrainingSnapshot snapshot(iteration_);
  snapshot.add_policy(lora::kActor, trainer_->adapter(), version_, base_, snapshot_memory_);
  KeptPart moments = moments_part(*trainer_, lora::kActor, snapshot_memory_);
  Json counters = {{"optimizer_steps", moments.json["optimizer_steps"]},
                   {"version", version_},
                   {"data_position", data_position_},
                   {"skipped_steps", skipped_at_iteration_},
                   {"device", device_name(base_)},
                   {"device_generation", device_generation(base_.stream->device())},
                   {"settings", settings_}};
  if (!evaluations_.is_null()) counters["evaluations"] = evaluations_;
  snapshot.set_moments(std::move(moments));
  snapshot.set_counters(std::move(counters));
  snapshot.set_arguments(save_.arguments);
  add_parts(snapshot);
  return snapshot;
}

void TrainingRun::begin_save() {
  if (saving_ == iteration_ || saved_iteration_ == iteration_) return;
  finish_save();
  save_failed_ = true;
  writer_->begin(snapshot(), still_read());
  save_failed_ = false;
  saving_ = iteration_;
}

void TrainingRun::finish_save() {
  if (!saving_) return;
  const int64_t iteration = *std::exchange(saving_, std::nullopt);
  save_failed_ = true;
  writer_->wait();
  save_failed_ = false;
  saved_iteration_ = iteration;
}

void TrainingRun::save() {
  if (!keeps()) return;
  finish_save();
  if (saved_iteration_ == iteration_ && parts_digest() != saved_parts_) saved_iteration_ = 0;
  begin_save();
  finish_save();
}

void TrainingRun::iterate(const std::function<void()>& iterations) {
  leave_resumed();
  try {
    iterations();
  } catch (...) {
    // Before the save, because the other ranks wait for this one meanwhile, and because a rank that has told the group
    // of a failure is given the time to save: one that has not is taken for stuck.
    parallel::fail(*group_, std::current_exception());
    save_after_failure();
    throw;
  }
}

void TrainingRun::save_after_failure() {
  if (!keeps() || iteration_ == 0 || save_failed_ || interrupt_saved_) return;
  const auto failed = [&](const std::string& why) {
    *control_.info << fmt::format("note    iteration {} could not be saved: {}\n", saving_.value_or(iteration_), why);
  };
  try {
    finish_save();
    if (saved_iteration_ == iteration_ && (has_changed() || parts_digest() == saved_parts_)) return;
    if (has_changed()) {
      *control_.info << fmt::format("note    iteration {} is not saved: the one that failed had begun to change it\n",
                                    iteration_);
      return;
    }
    save();
    *control_.info << fmt::format("saved   iteration {} before the failure; SaveOptions::load {} goes on from there\n",
                                  iteration_, save_.save);
  } catch (const Error& error) {
    failed(fmt::format("{}: {} {}", error.fault().what, error.fault().where, error.fault().got));
  } catch (const std::exception& error) {
    failed(error.what());
  }
}

bool TrainingRun::has_changed() const {
  return !trainer_->whole() || trainer_->steps() != steps_at_iteration_ ||
         std::ranges::any_of(
             beside_, [](const auto& kept) { return !kept.first->whole() || kept.first->steps() != kept.second; });
}

bool TrainingRun::save_requested() const {
  const bool by_file = !save_.trigger_sentinel.empty() && fs::exists(save_.trigger_sentinel);
  return control_.save_requested() || by_file;
}

void TrainingRun::save_if_due() {
  if (!keeps()) return;
  if (save_requested()) {
    save();
    *control_.info << fmt::format("saved   iteration {}, as asked\n", iteration_) << std::flush;
    // Only now: who waits for the file to go finds the checkpoint on the disk.
    std::error_code ignored;  // where it cannot be removed, the next iteration is saved, too
    if (!save_.trigger_sentinel.empty()) std::filesystem::remove(save_.trigger_sentinel, ignored);
  } else if (save_.save_interval > 0 && iteration_ % save_.save_interval == 0) {
    begin_save();
  }
}

bool TrainingRun::is_interrupt(const parallel::PeerFailed& error) const {
  return error.exit_code() == Cancelled(Fault()).exit_code() && group_->interrupted() && !has_changed();
}

void TrainingRun::stop_interrupted() {
  control_.stopped();
  if (save_.save.empty())
    throw Cancelled({.what = fmt::format("interrupted after iteration {}", iteration_),
                     .got = "no SaveOptions::save, so nothing is kept"});
  if (iteration_ == 0)
    throw Cancelled({.what = "interrupted before the first iteration was done", .attempt = "run the command again"});
  if (control_.rank != 0)
    throw Cancelled({.what = fmt::format("interrupted after iteration {}; rank 0 saves", iteration_)});
  // For the same reasons as in iterate().
  parallel::fail(*group_, std::make_exception_ptr(Cancelled({.what = "interrupted"})));
  save();
  interrupt_saved_ = true;
  throw Cancelled({.what = fmt::format("interrupted; iteration {} is saved", iteration_),
                   .where = save_.save,
                   .attempt = fmt::format(
                       "the same command with SaveOptions::load {} to {}", save_.save,
                       resumes_exactly_ ? "resume bit for bit" : "go on from there (its samples will be others)")});
}

void TrainingRun::finish() {
  if (keeps() && iteration_ > 0) {
    save();
    const fs::Path where =
        fs::Path(save_.save) / checkpoint::iteration_directory_name(iteration_) / checkpoint::kAdapterDirectory;
    *control_.info << fmt::format("adapter {}\n", where.string());
  }
  // Rank 0 alone says so, when it has saved: a rank that fails before would have it ended meanwhile.
  if (took_step_ || skipped_steps_ == skipped_at_start_ || control_.rank != 0) return;
  throw CheckError({.what = "the run has trained nothing: its steps were abandoned",
                    .where = fmt::format("iteration {}", iteration_),
                    .got = fmt::format("{} abandoned, 0 taken", skipped_steps_ - skipped_at_start_),
                    .wanted = "at least one step with finite outputs and a finite gradient",
                    .attempt = "a look at the skip lines above: at the model, the reference and the rows"});
}

}  // namespace lockstep::recipes
