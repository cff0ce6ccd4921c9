#include "recipes/rl.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <ostream>

#include "kernels/kernel_choice.h"
#include "parallel/agree.h"
#include "recipes/algorithm.h"
#include "recipes/arriving_rollouts.h"
#include "recipes/bad_rows.h"
#include "recipes/debug_dump.h"
#include "recipes/iteration_line.h"
#include "recipes/join_ranks.h"
#include "recipes/partial_rollouts.h"
#include "recipes/pending_samples.h"
#include "recipes/policies.h"
#include "recipes/rl_evaluation.h"
#include "recipes/rl_settings.h"
#include "recipes/rollout_engine.h"
#include "recipes/rollout_log.h"
#include "recipes/rollout_metrics.h"
#include "recipes/rollout_sampling.h"
#include "recipes/rollouts_by_rule.h"
#include "recipes/run_progress.h"
#include "recipes/run_warnings.h"
#include "recipes/sampled_versions.h"
#include "recipes/samples/rollout_samples.h"
#include "recipes/save_directory.h"
#include "recipes/second_trainers.h"
#include "recipes/training_run.h"
#include "rl/dealt_reward.h"
#include "rl/train.h"
#include "rollout/dealt_sampler.h"
#include "versions/store.h"

namespace lockstep::recipes {

namespace {

// Versions that are held so that log-probs of samples that several versions drew can be compared with theirs.
int64_t versions_in_samples(const RlOptions& options) {
  constexpr int64_t kUnbounded = 8, kMax = 64;
  if (options.async.on && options.engine.kind) return 1;  // who draws with a version keeps it
  if (options.async.on) return options.async.max_staleness.value_or(kUnbounded) + 2;
  if (!options.partial.on) return 1;
  return std::min(kMax, options.sampling.max_tokens / options.partial.tokens + 4);
}

std::unique_ptr<rl::Reward> run_reward(const RlOptions& options) {
  return rl::make_reward(options.reward, {.input = options.input_key, .metadata = options.metadata_key});
}

// Whether this version of the actor drew every token.
bool is_by(std::span<const rl::Trajectory> trajectories, int64_t version) {
  return std::ranges::all_of(trajectories, [version](const rl::Trajectory& trajectory) {
    return std::ranges::all_of(trajectory.versions,
                               [version](int64_t drew) { return drew == version || drew == lora::PolicyId::kBase; });
  });
}

class RlRun {
 public:
  // `group` outlives the run, so that it can still say how the run failed.
  RlRun(const RlOptions& options, const Control& control, std::unique_ptr<parallel::Group>& group)
      : options_(options),
        control_(control),
        reward_(options.debug.train_only ? no_reward() : run_reward(options)),
        stream_(stream_options(options.base)),
        sampling_stream_(beside_ ? std::make_unique<Stream>(sampling_stream_options()) : nullptr),
        base_(load_base(options.base, stream_, control)),
        group_(*(group = join_ranks(control, base_, stream_, options.training.ranks))),
        tokenizer_(text::Tokenizer::load(base_.path.string())),
        prompts_(read_prompts(prompt_source(options, base_), tokenizer_)),
        total_(num_rollouts()),
        run_(options.adapter, options.optimizer, options.training, options.save, base_, stream_, control,
             rl_settings(options, prompts_), options.sampling.temperature, beside_trainer(options, base_), &group_),
        engine_(options, base_, tokenizer_, run_.memory().engine_kv_bytes(), run_.trainer().adapter(), prompts_.prompts,
                sampling_stream_ ? *sampling_stream_ : stream_, control),
        log_(control.rank == 0 ? options.save.save : "", run_.saved_iteration(), control,
             {.kind = "rl", .iterations = total_, .arguments = options.save.arguments},
             control.rank == 0 ? options.save.reports : ReportOptions()) {
    const int64_t steps = options.rollout_batch_size * options.n_samples / options.training.global_batch_size;
    run_.set_schedule((total_ - without_actor_) * steps);
    make_second_trainers(total_ * steps);
    // A GPU gives it to the next rollout's keys and values; the CPU would only pay for the pages again.
    train_plan_ = {
        .batch_size = options.training.global_batch_size,
        .schedule = run_.schedule(),
        .seed = options.training.seed,
        .on_not_finite = [this](const train::NotFiniteError& error,
                                std::span<const train::Datum> batch) { run_.abandoned(error, batch, algorithm_.loss); },
        .release_memory = run_.memory().is_bounded() && !ahead_,
        .dropout = run_.trainer_options().dropout > 0,
        .measure_logprobs = options.checks.reads_logprobs(),
        .observer = dump_.observer(),
        .on_not_published = [this](std::exception_ptr error) { not_published_ = std::move(error); }};
    engine_.add_sinks(store_);
    if (!engine_.is_exact() || options.async.on) run_.resumes_inexactly();
    run_.keep("warnings", [this] { return KeptPart{.json = warnings_.json()}; });
    if (const auto kept = run_.resumed_part("warnings"))
      warnings_ = RunWarnings::from(kept->json, "parts/warnings.json");
    sampling_.order().keep_in(run_);
    versions_.emplace(staleness_, versions_in_samples(options), store_, run_);
    keep_pending_samples(run_, graded_);
    if (group_.size() == 1) return;
    require_rule();
    eval_rewards_.deal(dealing_, [this] { return asked_to_stop(); });
  }

  void train() {
    control_.working();
    *control_.info << fmt::format("data    {} prompts from {}{}\n", num_prompts(), options_.prompt_data,
                                  prompts_.dropped_text());
    report_bad_rows(prompts_.bad_rows, options_.max_bad_rows, *control_.info);
    held_out_.report_left_out(*control_.info);
    keep_coefficients();
    run_.require_same_start();
    make_source();  // while the checkpoint that the run goes on from can still be read
    run_.iterate([&] { iterations(); });
    run_.finish();
    evaluation_.describe_best();
    base_check_.at_end();
  }

 private:
  void iterations() {
    // Of a run that was interrupted between a checkpoint and its evaluation, this is the evaluation.
    evaluation_.go_on();
    evaluate_if_due(run_.iteration());
    if (run_.iteration() >= total_) *control_.info << fmt::format("note    all {} rollouts were done before\n", total_);
    const Pace pace(run_.iteration(), total_);
    for (int64_t rollout = run_.iteration(); rollout < total_; ++rollout) {
      iteration_ = {};
      SampledRollout sampled = run_.interruptible([&] { return source_->next(rollout); });
      dump_.write_rollout(rollout, sampled.rollout, sampled.exact_logprobs);
      if (options_.debug.rollout_only) {
        only_sampled(rollout, std::move(sampled), pace);
        continue;
      }
      require_some_reward(rollout + 1, sampled.rollout.report);
      plan_versions(sampled);
      train_plan_.train_actor = rollout >= without_actor_;
      const rl::TrainReport trained = run_.interruptible([&] {
        return rl::rl_train(parts_, algorithm_, sampled.rollout, train_plan_, progress_.watch(rollout, "training"));
      });
      dump_.write_training(rollout);
      const int64_t version = run_.version();  // that was trained
      versions_->trained(rollout + 1,
                         trained.published.policy.is_base() ? versions_->newest() : trained.published.policy);
      run_.set_version(versions_->newest().version);
      run_.completed(source_->finish(sampled));
      graded_.forget_before(rollout + 1);
      adapt(rollout + 1, trained);
      log(rollout + 1, sampled, trained, version, pace);
      if (!not_published_) check(rollout + 1, trained);
      warn_of_another(sampled, trained);
      warn(sampled.rollout.report, trained);
      samples_.write(rollout + 1, std::move(sampled.rollout));
      // Only now: the iteration is complete, and the checkpoint after the failure is the one it would have had anyway.
      if (not_published_) std::rethrow_exception(not_published_);
      evaluate_if_due(rollout + 1);
      // Whoever goes on from a checkpoint finds the samples up to it.
      if (const int64_t every = options_.save.save_interval; every > 0 && (rollout + 1) % every == 0) samples_.wait();
      run_.interruptible([&] { source_->take_graded(); });
      run_.save_if_due();
      for (const auto& second : seconds_) second->save_if_due(rollout + 1, rollout + 1 == total_);
    }
    samples_.wait();
  }

  // Of several ranks: they sample the same rollouts in the same order.
  void require_rule() const {
    if (options_.partial.on)
      throw ConfigError({.what = "several ranks draw each sample in one rollout",
                         .where = "RlOptions::partial",
                         .attempt = "one rank, or no partial rollouts"});
    if (options_.async.on)
      throw ConfigError({.what = "several ranks do not train on what arrives first: each would have other samples",
                         .where = "RlOptions::async",
                         .attempt = "one rank, or RlOptions::staleness, which samples ahead by a rule"});
  }

  // Whether a rank was asked to stop; asked while samples are drawn, on whichever thread draws them.
  bool asked_to_stop() {
    if (control_.interrupted()) dealing_.interrupt();
    dealing_.check();
    return dealing_.interrupted();
  }

  // What the training on this rollout has to know of the versions that sampled it.
  void plan_versions(const SampledRollout& sampled) {
    train_plan_.exact_logprobs = sampled.exact_logprobs;
    train_plan_.decoupled = options_.async.on && options_.async.recompute_policy;
    train_plan_.version_of = {};
    if (is_by(sampled.rollout.trajectories, run_.version())) return;
    train_plan_.version_of = [this](int64_t version) { return versions_->find(version); };
  }

  // DebugOptions::rollout_only: what is left of an iteration.
  void only_sampled(int64_t rollout, SampledRollout sampled, const Pace& pace) {
    rl::TrainReport none;
    none.actor_trained = false;
    log(rollout + 1, sampled, none, run_.version(), pace);
    samples_.write(rollout + 1, std::move(sampled.rollout));
    graded_.forget_before(rollout + 1);
    evaluate_if_due(rollout + 1);
  }

  // `steps`: of each of them in the whole run.
  void make_second_trainers(int64_t steps) {
    for (const SecondTrainerKind* kind : second_trainers(options_)) {
      seconds_.push_back(kind->make(options_, base_, run_, stream_, control_));
      seconds_.back()->set_steps(steps);
      parts_.seconds.push_back(seconds_.back().get());
    }
  }

  void check(int64_t rollout, const rl::TrainReport& trained) {
    if (trained.actor_trained)
      check_rollout(options_.checks, {.rollout = rollout,
                                      .logprob_diff = trained.logprob_diff,
                                      .logprob_diff_max = trained.logprob_diff_max,
                                      .kl = trained.kl});
    check_published(options_.checks, run_.trainer().adapter(), *store_.pin(lora::kActor).version(), stream_);
  }

  // A run, or one that goes on, learns nothing where nobody can say any reward of the rollout that it begins with.
  // Later ones may fail for a while: their steps are not taken.
  void require_some_reward(int64_t rollout, const rl::RolloutReport& sampled) {
    if (sampled.reward || sampled.reward_unknown == 0) has_rewards_ = true;
    if (has_rewards_) return;
    throw DataError({.what = "no reward is known in the rollout that the run begins with",
                     .where = fmt::format("rollout {}, {} samples", rollout, sampled.reward_unknown),
                     .got = sampled.reward_failure,
                     .attempt = "lockstep reward on a few rows with the same flags, until it grades them"});
  }

  void warn(const rl::RolloutReport& sampled, const rl::TrainReport& trained) {
    if (trained.abandoned_steps + trained.skipped_steps > 0 || !trained.actor_trained) return;  // means of a part
    for (const std::string& text :
         warnings_.add({.reward = sampled.reward, .entropy = trained.entropy, .kl = trained.kl}))
      log_.say("warning " + text);
  }

  // A server whose log-probs were the trainer's bit for bit answers with others: its samples are not the adapter's.
  void warn_of_another(const SampledRollout& sampled, const rl::TrainReport& trained) {
    const bool is_exact = sampled.exact_logprobs && engine_.sampler().capabilities().exact_logprobs;
    if (warned_of_another_ || !options_.engine.kind || !is_exact || trained.logprob_diff_max.value_or(0) == 0) return;
    warned_of_another_ = true;
    log_.say(
        fmt::format("warning log-probs of a server that were the trainer's bit for bit differ by up to {:.3g}: "
                    "another adapter or other settings made its samples (RunChecks::equal_logprobs ends the run)",
                    *trained.logprob_diff_max));
  }

  void make_source() {
    stream_.synchronize();  // what another stream is about to read is there
    if (options_.debug.train_only)
      source_ = std::make_unique<LoadedRollouts>(options_);
    else if (options_.debug.rollout_only)
      source_ = std::make_unique<RolloutsOfOneVersion>(sampling_, *versions_, run_, progress_);
    else if (options_.async.on)
      source_ = std::make_unique<ArrivingRollouts>(options_, prompts_, sampling_, parts_, run_, progress_);
    else if (options_.partial.on)
      source_ = std::make_unique<PartialRollouts>(options_, prompts_, sampling_, parts_, *versions_, run_, progress_);
    else
      source_ = std::make_unique<RolloutsByRule>(staleness_, sampled_together(options_), sampling_, sampler_,
                                                 *versions_, run_, progress_, total_,
                                                 kernels::chooses_by_time(stream_) && !options_.engine.kind);
    versions_->keep_also([this] { return source_->drawn_by(); });
  }

  // What the next rollout is trained with.
  void adapt(int64_t rollouts, const rl::TrainReport& trained) {
    algorithm_.shaping.kl_coef = trained.next.kl_reward;
    algorithm_.loss.entropy_coef = static_cast<float>(trained.next.entropy);
    if (options_.ref_update_interval == 0 || rollouts % options_.ref_update_interval != 0) return;
    policies_.follow_actor();
    parts_.reference = policies_.reference();
  }

  // Coefficients go on where they were.
  void keep_coefficients() {
    if (options_.kl_control.target == 0 && !options_.entropy_control.on) return;
    constexpr const char* kPart = "coefficients";
    if (const auto part = run_.resumed_part(kPart)) {
      algorithm_.shaping.kl_coef = part->json.at("kl_coef").get<double>();
      algorithm_.loss.entropy_coef = part->json.at("entropy_coef").get<float>();
    }
    run_.keep(kPart, [this] {
      return KeptPart{
          .json = {{"kl_coef", algorithm_.shaping.kl_coef}, {"entropy_coef", algorithm_.loss.entropy_coef}}};
    });
  }

  // `version`: of the actor that was trained.
  void log(int64_t step, const SampledRollout& sampled, const rl::TrainReport& trained, int64_t version,
           const Pace& pace) {
    const rl::RolloutReport& report = sampled.rollout.report;
    const double iteration_ms =
        source_->overlaps() ? iteration_.ms() : report.rollout_ms + report.reward_ms + trained.train_ms;
    OrderedJson line = iteration_line(options_, {.step = step,
                                                 .sampled = sampled,
                                                 .trained = trained,
                                                 .version = version,
                                                 .iteration_ms = iteration_ms,
                                                 .exact_logprobs = sampled.exact_logprobs,
                                                 .policys_logprobs = engine_.sampler().capabilities().policys_logprobs,
                                                 .abandoned_steps = run_.skipped_steps()});
    line.update(source_->metrics());
    add_memory(line, stream_);
    engine_.tell_notes();
    line.update(engine_.metrics());
    log_.write(line);
    log_.say(rollout_text(step, total_, sampled.rollout, trained, iteration_ms, pace.left(step)));
    if (report.reward_unknown > 0)
      log_.say(unknown_rewards_text(step, total_, sampled.gates.sampled * options_.n_samples, report, trained));
    if (options_.advantage.estimator != rl::Estimator::max_rl || negative_groups_said_) return;
    const std::string negative = negative_groups_text(step, total_, sampled.rollout.trajectories);
    negative_groups_said_ = !negative.empty();
    if (negative_groups_said_) log_.say(negative);
  }

  int64_t num_rollouts() const {
    if (options_.num_rollout) return *options_.num_rollout;
    const int64_t rollouts = *options_.num_epoch * num_prompts() / options_.rollout_batch_size;
    if (rollouts == 0)
      throw ConfigError(
          {.what = "the prompts do not fill one rollout",
           .where = "RlOptions::num_epoch",
           .got = fmt::format("{} x {} prompts", *options_.num_epoch, num_prompts()),
           .wanted = fmt::format("at least RlOptions::rollout_batch_size = {}", options_.rollout_batch_size),
           .attempt = "more epochs, a smaller batch, or RlOptions::num_rollout"});
    return rollouts;
  }

  // The few small kernels of a decode step would wait for the large ones of training.
  StreamOptions sampling_stream_options() const {
    StreamOptions options = stream_options(options_.base);
    options.goes_first = true;
    return options;
  }

  int64_t num_prompts() const { return static_cast<int64_t>(prompts_.prompts.size()); }

  void evaluate_if_due(int64_t rollouts) {
    if (!evaluation_.is_due(rollouts)) return;
    run_.interruptible([&] { source_->rest(); });
    evaluation_.evaluate(rollouts, sampler_, versions_->newest(), judge_, !ahead_);
  }

  const RlOptions& options_;
  const Control& control_;
  const std::unique_ptr<rl::Reward> reward_;  // first: its processes begin before there are threads
  EvalRewards eval_rewards_{options_};        // as well
  const StalenessRule staleness_ = options_.staleness;
  const bool ahead_ = !staleness_.is_synchronous() || options_.async.on;  // samples are in flight while it trains
  const bool beside_ = ahead_ && !sampled_together(options_);             // and are drawn meanwhile
  Stream stream_;
  // Where training goes on meanwhile.
  const std::unique_ptr<Stream> sampling_stream_;
  const Base base_;
  parallel::Group& group_;
  // Through which the ranks deal and gather samples and rewards: of the thread that samples, where that is another one.
  const std::unique_ptr<parallel::Group> sampling_group_ = beside_ && group_.size() > 1 ? group_.second() : nullptr;
  parallel::Group& dealing_ = sampling_group_ ? *sampling_group_ : group_;
  const text::Tokenizer tokenizer_;
  const PromptSet prompts_;
  const HeldOutPrompts held_out_{options_, eval_rewards_, base_, tokenizer_};
  const int64_t total_;
  const int64_t without_actor_ = rollouts_without_actor(options_, total_);
  const BaseCheck base_check_{options_.checks, *base_.model, stream_};
  // Loaded before memory is planned.
  const std::optional<Base> other_model_ = load_teacher_model(options_, base_, stream_, control_);
  TrainingRun run_;
  RolloutEngine engine_;
  // Of several ranks: each generates and grades its share.
  rollout::DealtSampler dealt_sampler_{engine_.sampler(), dealing_, [this] { return asked_to_stop(); }};
  rl::DealtReward dealt_reward_{*reward_, dealing_, [this] { return asked_to_stop(); }};
  rollout::Sampler& sampler_ = group_.size() > 1 ? dealt_sampler_ : engine_.sampler();
  rl::Reward& judge_ = group_.size() > 1 ? dealt_reward_ : *reward_;
  std::vector<std::unique_ptr<SecondTrainer>> seconds_;
  rl::GradedSamples graded_;  // of rollouts that are not trained on yet
  versions::Store store_;
  std::optional<SampledVersions> versions_;  // made when the sinks are there
  Policies policies_{options_, base_, other_model_, run_, stream_, control_};
  rl::RlParts parts_{sampler_, run_.trainer(), judge_,  store_, &tokenizer_, policies_.reference(), policies_.teacher(),
                     {},       &group_,        &graded_};
  RolloutSampling sampling_{options_, prompts_, base_.eos, parts_};
  rl::Algorithm algorithm_ = algorithm_of(options_);
  rl::TrainPlan train_plan_;
  RolloutSamples samples_{options_.save, run_.saved_iteration(), tokenizer_, group_};
  DebugDump dump_{options_.debug, group_, samples_.observer()};
  RunLog log_;
  RunWarnings warnings_;
  std::exception_ptr not_published_;   // what kept the version that was just trained from those who generate
  bool warned_of_another_ = false;     // of log-probs of another adapter
  bool negative_groups_said_ = false;  // by this process (negative_groups_text)
  bool has_rewards_ = false;           // some reward was known since this process began
  RlEvaluation evaluation_{options_, held_out_, run_, log_, control_, total_};
  RunProgress progress_{log_, run_, total_, [this] { engine_.tell_notes(); }};
  Stopwatch iteration_;
  std::unique_ptr<RolloutSource> source_;  // last: it may have a thread that uses the others
};

}  // namespace

BesideTrainer beside_trainer(const RlOptions& options, const Base& base) {
  const StalenessRule& rule = options.staleness;
  const int64_t sample = std::max(versions_in_samples(options), rule.is_synchronous() ? 1 : rule.versions());
  BesideTrainer beside{.engine = engine_plan(options), .versions = sample + 1, .shares_prompts = true};
  for (const SecondTrainerKind* kind : second_trainers(options))
    beside.trained.push_back({kind->name, kind->layout(options, base)});
  return beside;
}

void run_rl(const RlOptions& options, const Control& control) {
  const SaveDirectory mine(control.rank == 0 ? options.save.save : "", control);
  std::unique_ptr<parallel::Group> group;
  // It ends after the other ranks have heard why: ending waits for its thread that samples.
  std::unique_ptr<RlRun> run;
  try {
    run = std::make_unique<RlRun>(options, control, group);
    run->train();
  } catch (...) {
    if (group) parallel::fail(*group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep::recipes
