#include "recipes/sft.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <memory>
#include <ostream>

#include "data/order.h"
#include "parallel/agree.h"
#include "recipes/adapter.h"
#include "recipes/held_out.h"
#include "recipes/join_ranks.h"
#include "recipes/preference.h"
#include "recipes/rollout_metrics.h"
#include "recipes/run_log.h"
#include "recipes/save_directory.h"
#include "recipes/sft_settings.h"
#include "recipes/step_line.h"
#include "recipes/steps.h"
#include "recipes/supervised_loss.h"
#include "recipes/training_rows.h"
#include "recipes/training_run.h"
#include "train/rank_load.h"

namespace lockstep::recipes {

namespace {

// TRL's names.
OrderedJson mean_of(double sum, double count) {
  return count > 0 ? OrderedJson(sum / count) : OrderedJson(nullptr);
}

// `rows` of them, of which some are desirable and the others not.
void add_judged(OrderedJson& line, const train::Metrics& metrics, double rows) {
  const double wanted = metrics.desirable, unwanted = rows - wanted;
  line["rewards/chosen"] = mean_of(metrics.reward_chosen, wanted);
  line["rewards/rejected"] = mean_of(metrics.reward_rejected, unwanted);
  line["rewards/margins"] = wanted > 0 && unwanted > 0
                                ? OrderedJson(metrics.reward_chosen / wanted - metrics.reward_rejected / unwanted)
                                : OrderedJson(nullptr);
  line["logps/chosen"] = mean_of(metrics.logp_chosen, wanted);
  line["logps/rejected"] = mean_of(metrics.logp_rejected, unwanted);
}

void add_rewards(OrderedJson& line, const train::Metrics& metrics, double pairs) {
  line["rewards/chosen"] = metrics.reward_chosen / pairs;
  line["rewards/rejected"] = metrics.reward_rejected / pairs;
  line["rewards/accuracies"] = metrics.reward_accuracy / pairs;
  line["rewards/margins"] = (metrics.reward_chosen - metrics.reward_rejected) / pairs;
  line["logps/chosen"] = metrics.logp_chosen / pairs;
  line["logps/rejected"] = metrics.logp_rejected / pairs;
}

train::Metrics averaged(train::Metrics metrics, double pairs) {
  metrics.reward_chosen /= pairs;
  metrics.reward_rejected /= pairs;
  metrics.reward_accuracy /= pairs;
  return metrics;
}

class SftRun {
 public:
  // `group` outlives the run, so that it can still say how the run failed.
  SftRun(const SftOptions& options, const Control& control, std::unique_ptr<parallel::Group>& group)
      : options_(options),
        control_(control),
        stream_(stream_options(options.base)),
        base_(load_base(options.base, stream_, control)),
        group_(*(group = join_ranks(control, base_, stream_, options.training.ranks))),
        preference_(options, base_, group_, control),
        data_(options.prompt_data, base_, options.rows, row_kind(options.loss), control),
        held_out_(options, base_, preference_, control),
        order_(data_.size(), options.shuffle, options.shuffle_seed),
        total_(sft_steps(options, data_.size())),
        run_(options.adapter, options.optimizer, options.training, options.save, base_, stream_, control, settings(), 1,
             {}, &group_),
        log_(control.rank == 0 ? options.save.save : "", run_.saved_iteration(), control,
             {.kind = pairs()             ? "dpo"
                      : preference_.kto() ? "kto"
                                          : "sft",
              .iterations = total_,
              .arguments = options.save.arguments},
             control.rank == 0 ? options.save.reports : ReportOptions()),
        best_(BestSoFar::from(run_.evaluations(), "train_state.json: evaluations")) {}

  void train() {
    control_.working();
    data_.describe("data", *control_.info);
    held_out_.describe(*control_.info);
    run_.set_schedule(total_);
    run_.require_same_start();
    run_.iterate([&] { iterations(); });
    run_.finish();
    if (options_.save_best && best_.iteration > 0)
      *control_.info << fmt::format("best    step {}, loss {:.5f}: {}\n", best_.iteration, *best_.loss,
                                    best_directory().string());
  }

 private:
  void iterations() {
    if (run_.iteration() >= total_) *control_.info << fmt::format("note    all {} steps were done before\n", total_);
    if (options_.save_best && best_.iteration > 0) run_.mark_best(best_.iteration);
    if (!held_out_.empty()) {
      const size_t set = held_out_.deciding();
      other_set_ = best_.measure_on(held_out_.names()[set].name, held_out_.digest(set), *control_.info);
    }
    evaluate_if_due();
    const Pace pace(run_.iteration(), total_);
    while (run_.iteration() < total_ && !out_of_patience()) {
      step(pace);
      evaluate_if_due();
      run_.save_if_due();
    }
    if (out_of_patience() && run_.iteration() < total_)
      *control_.info << fmt::format("stop    {} evaluations without a better loss than {:.5f} at step {}\n",
                                    best_.stale, *best_.loss, best_.iteration);
  }

  bool pairs() const { return train::datums_per_term(options_.loss) == 2; }

  OrderedJson settings() const {
    OrderedJson settings = {{"rows of --prompt-data", data_.size()},
                            {"tokens and targets of --prompt-data", data_.digest().substr(0, 16)}};
    settings.update(sft_settings(options_));
    if (preference_.is_to_adapter()) settings["--ref-load"] = options_.reference;
    return settings;
  }

  std::vector<train::Datum> next_batch() {
    const int64_t left_in_epoch = data_.size() - run_.data_position() % data_.size();
    const int64_t batch = options_.training.global_batch_size;
    std::vector<train::Datum> datums;
    for (const int64_t row :
         order_.rows(run_.data_position(), options_.rollout_batch_size > 0 ? batch : std::min(batch, left_in_epoch)))
      data_.append(row, datums);
    return datums;
  }

  void step(const Pace& pace) {
    const Stopwatch watch;
    const int64_t number = run_.iteration() + 1;
    std::vector<train::Datum> datums = next_batch();
    const auto rows = static_cast<int64_t>(datums.size()) / data_.datums_per_row();
    const auto on_progress = [&](int64_t done) {
      log_.progress(fmt::format("{} step {}/{}: {}/{} rows | {:.0f} tok/s | {}", progress_bar(number - 1, total_),
                                number, total_, done / data_.datums_per_row(), rows, speed_, pace.left(number - 1)));
    };
    on_progress(0);
    const train::Loss loss = preference_.of_step(run_.trainer(), datums);
    const double lr = run_.learning_rate();
    const std::optional<train::StepReport> taken = run_.step(datums, loss, on_progress);
    if (!taken) {
      run_.completed(rows);
      log_.write({{"step", number}, {"abandoned_steps", run_.skipped_steps()}});
      return;
    }
    const train::StepReport& report = *taken;
    speed_ = 1000.0 * static_cast<double>(report.tokens) / watch.ms();
    run_.completed(rows);
    run_.set_version(run_.version() + 1);
    OrderedJson line = {{"step", number},
                        {"epoch", static_cast<double>(run_.data_position()) / static_cast<double>(data_.size())},
                        {"loss", report.loss},
                        {"grad_norm", report.grad_norm},
                        {"lr", lr},
                        {"tokens", report.tokens},
                        {"train_ms", watch.ms()},
                        {"tokens_per_s", speed_}};
    train::RankLoad load;
    load.add(run_.trainer(), datums, train::datums_per_term(loss), group_.size());
    if (const auto imbalance = load.imbalance()) line["rank_imbalance"] = *imbalance;
    add_memory(line, stream_);
    if (pairs()) add_rewards(line, report.metrics, 1);
    if (const auto* kto = std::get_if<train::KtoLoss>(&loss)) {
      add_judged(line, report.metrics, 1);
      line["kl"] = kto->kl;
    }
    log_.write(line);
    SupervisedStep shown{.step = number,
                         .of = total_,
                         .loss = report.loss,
                         .grad_norm = report.grad_norm,
                         .lr = lr,
                         .tokens_per_s = speed_,
                         .tokens = report.tokens,
                         .left = pace.left(number)};
    if (pairs()) shown.preference = report.metrics;
    log_.say(supervised_line(shown));
  }

  void evaluate_if_due() {
    const int64_t at = run_.iteration();
    if (held_out_.empty() || best_.evaluated >= at) return;
    const bool due = at == 0 ? options_.eval_before_train : at >= total_ || at % options_.eval_interval == 0;
    if (!due) return;
    double deciding = 0;
    for (size_t set = 0; set < held_out_.names().size(); ++set) {
      const std::string& name = held_out_.names()[set].name;
      const auto on_progress = [&](int64_t done, int64_t rows) {
        run_.stop_if_interrupted("evaluation");
        log_.progress(fmt::format("{} evaluating {}: {}/{} rows", progress_bar(done, rows), name, done, rows));
      };
      const train::Evaluation sums = run_.interruptible([&] { return held_out_.evaluate(set, run_, on_progress); });
      const bool decides = set == held_out_.deciding();
      if (decides) deciding = sums.mean_loss(options_.training.per_token_loss);
      if (at != resumed_at_ || !log_.has_evaluation(name) || (decides && other_set_)) report(name, sums);
    }
    compare_with_best(deciding);
  }

  void report(const std::string& name, const train::Evaluation& sums) {
    const double loss = sums.mean_loss(options_.training.per_token_loss), terms = static_cast<double>(sums.samples);
    const double accuracy = static_cast<double>(sums.correct) / static_cast<double>(sums.targets);
    OrderedJson line = {{"step", run_.iteration()}, {"eval", name}, {"loss", loss}};
    if (pairs())
      add_rewards(line, sums.metrics, terms);
    else if (preference_.kto() != nullptr)
      add_judged(line, sums.metrics, terms);
    else
      line["perplexity"] = std::exp(sums.nll / sums.weight);
    line["token_accuracy"] = accuracy;
    line["tokens"] = sums.targets;
    log_.write(line);
    SupervisedEvaluation shown{
        .name = name, .step = run_.iteration(), .loss = loss, .accuracy = accuracy, .tokens = sums.targets};
    if (pairs())
      shown.preference = averaged(sums.metrics, terms);
    else if (preference_.kto() == nullptr)
      shown.perplexity = std::exp(sums.nll / sums.weight);
    log_.say(evaluation_line(shown));
  }

  void compare_with_best(double loss) {
    const bool better = best_.add(run_.iteration(), loss, options_.threshold);
    run_.set_evaluations(best_.json());
    if (better && options_.save_best) run_.save_best();
  }

  // A run resumed from elsewhere need not have written the best checkpoint itself.
  fs::Path best_directory() const {
    const std::string name = checkpoint::iteration_directory_name(best_.iteration);
    const fs::Path own = fs::Path(options_.save.save) / name;
    return fs::is_directory(own) ? own : fs::Path(options_.save.load) / name;
  }

  bool out_of_patience() const { return options_.patience && best_.stale >= *options_.patience; }

  const SftOptions& options_;
  const Control& control_;
  Stream stream_;
  const Base base_;
  parallel::Group& group_;
  const PreferenceInputs preference_;
  TrainingRows data_;
  HeldOut held_out_;
  data::DataOrder order_;
  const int64_t total_;
  TrainingRun run_;
  const int64_t resumed_at_ = run_.iteration();
  RunLog log_;
  BestSoFar best_;
  bool other_set_ = false;  // than the one of the run that this one goes on from decides
  double speed_ = 0;        // of the last step
};

}  // namespace

void run_sft(const SftOptions& options, const Control& control) {
  const SaveDirectory mine(control.rank == 0 ? options.save.save : "", control);
  std::unique_ptr<parallel::Group> group;
  try {
    SftRun(options, control, group).train();
  } catch (...) {
    if (group) parallel::fail(*group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep::recipes
