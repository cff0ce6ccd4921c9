#include "recipes/rl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <ostream>

#include "parallel/agree.h"
#include "recipes/algorithm.h"
#include "recipes/bad_rows.h"
#include "recipes/critic.h"
#include "recipes/held_out.h"
#include "recipes/held_out_prompts.h"
#include "recipes/join_ranks.h"
#include "recipes/policies.h"
#include "recipes/prompt_order.h"
#include "recipes/rl_settings.h"
#include "recipes/rollout_engine.h"
#include "recipes/rollout_log.h"
#include "recipes/rollout_metrics.h"
#include "recipes/rollouts_ahead.h"
#include "recipes/run_warnings.h"
#include "recipes/sampled_versions.h"
#include "recipes/samples/rollout_samples.h"
#include "recipes/save_directory.h"
#include "recipes/training_run.h"
#include "rl/dealt_reward.h"
#include "rl/gate.h"
#include "rl/pass_rate.h"
#include "rl/train.h"
#include "rollout/dealt_sampler.h"
#include "versions/store.h"

namespace lockstep::recipes {

namespace {

std::vector<std::optional<float>> rewards_of(const rl::Rollout& rollout) {
  std::vector<std::optional<float>> rewards;
  for (const rl::Trajectory& trajectory : rollout.trajectories) rewards.push_back(trajectory.reward);
  return rewards;
}

struct SamplingProgress {
  int32_t done = 0, of = 0;
};

class RlRun {
 public:
  // `group` outlives the run, so that it can still say how the run failed.
  RlRun(const RlOptions& options, const Control& control, std::unique_ptr<parallel::Group>& group)
      : options_(options),
        control_(control),
        reward_(rl::make_reward(options.reward, {.input = options.input_key, .metadata = options.metadata_key})),
        stream_(stream_options(options.base)),
        sampling_stream_(staleness_.is_synchronous() ? nullptr : std::make_unique<Stream>(sampling_stream_options())),
        base_(load_base(options.base, stream_, control)),
        group_(*(group = join_ranks(control, base_, stream_, options.training.ranks))),
        tokenizer_(text::Tokenizer::load(base_.path.string())),
        prompts_(read_prompts(prompt_source(options, base_), tokenizer_)),
        order_(options, num_prompts()),
        total_(num_rollouts()),
        run_(options.adapter, options.optimizer, options.training, options.save, base_, stream_, control,
             rl_settings(options, prompts_), options.sampling.temperature,
             {.engine = engine_plan(options), .critic = critic_layout(options, base_)}, &group_),
        engine_(options, base_, tokenizer_, run_.memory().engine_kv_bytes(), run_.trainer().adapter(), prompts_.prompts,
                sampling_stream_ ? *sampling_stream_ : stream_, control),
        log_(control.rank == 0 ? options.save.save : "", run_.saved_iteration(), control,
             {.kind = "rl", .iterations = total_, .arguments = options.save.arguments},
             control.rank == 0 ? options.save.reports : ReportOptions()) {
    sampling_params_ = with_stop_ids(options.sampling);
    sampling_params_.logprob_temperature = options.sampling.temperature;
    const int64_t steps = options.rollout_batch_size * options.n_samples / options.training.global_batch_size;
    const int64_t without_actor = algorithm_.needs_critic() ? std::min(total_, options.critic.only_rollouts) : 0;
    run_.set_schedule((total_ - without_actor) * steps);
    if (algorithm_.needs_critic()) critic_.emplace(options, base_, run_, stream_, control);
    // A GPU gives it to the next rollout's keys and values; the CPU would only pay for the pages again.
    train_plan_ = {
        .batch_size = options.training.global_batch_size,
        .schedule = run_.schedule(),
        .seed = options.training.seed,
        .on_not_finite = [this](const train::NotFiniteError& error,
                                std::span<const train::Datum> batch) { run_.abandoned(error, batch, algorithm_.loss); },
        .release_memory = run_.memory().is_bounded() && staleness_.is_synchronous(),
        .dropout = options.adapter.config.dropout > 0,
        .measure_logprobs = options.checks.reads_logprobs(),
        .observer = samples_.observer()};
    if (critic_) add_critic(total_ * steps);
    engine_.add_sinks(store_);
    run_.keep("warnings", [this] { return KeptPart{.json = warnings_.json()}; });
    if (const auto kept = run_.resumed_part("warnings"))
      warnings_ = RunWarnings::from(kept->json, "parts/warnings.json");
    order_.keep_in(run_);
    versions_.emplace(staleness_, store_, run_);
    if (group_.size() > 1 && !staleness_.is_synchronous())  // a group is of one thread, and so are sampler and reward
      throw ConfigError({.what = "several ranks sample and train in turn",
                         .where = "max_staleness, update_interval",
                         .wanted = "0 and 1",
                         .attempt = "one rank, to sample while training"});
  }

  void train() {
    control_.working();
    *control_.info << fmt::format("data    {} prompts from {}{}\n", num_prompts(), options_.prompt_data,
                                  prompts_.dropped ? fmt::format(" ({} too long, dropped)", prompts_.dropped) : "");
    report_bad_rows(prompts_.bad_rows, options_.max_bad_rows, *control_.info);
    held_out_.report_bad_rows(*control_.info);
    keep_coefficients();
    run_.require_same_start();
    run_.iterate([&] { iterations(); });
    run_.finish();
    if (options_.save_best && best_.iteration > 0)
      *control_.info << fmt::format("best    rollout {}, accuracy {:.4f}\n", best_.iteration, 1 - *best_.loss);
    base_check_.at_end();
  }

 private:
  void iterations() {
    // Of a run that was interrupted between a checkpoint and its evaluation, this is the evaluation.
    if (options_.save_best && best_.iteration > 0) mark_best();
    evaluate_if_due();
    if (run_.iteration() >= total_) *control_.info << fmt::format("note    all {} rollouts were done before\n", total_);
    if (!staleness_.is_synchronous()) sample_ahead();
    const Pace pace(run_.iteration(), total_);
    for (int64_t rollout = run_.iteration(); rollout < total_; ++rollout) {
      iteration_ = {};
      SampledRollout sampled = run_.interruptible([&] { return next_sampled(rollout); });
      look_at(sampled);
      train_plan_.sampled_with = ahead_ ? sampled.version.get() : nullptr;
      train_plan_.train_actor = !critic_ || rollout >= options_.critic.only_rollouts;
      const rl::TrainReport trained = run_.interruptible(
          [&] { return rl::rl_train(parts_, algorithm_, sampled.rollout, train_plan_, watch(rollout, "training")); });
      const int64_t version = run_.version();  // that was trained
      versions_->trained(rollout + 1,
                         trained.published.policy.is_base() ? versions_->newest() : trained.published.policy);
      run_.set_version(versions_->newest().version);
      run_.completed(order_.finish(gates_));
      adapt(rollout + 1, trained);
      log(rollout + 1, sampled.rollout, trained, version, pace);
      check(rollout + 1, trained);
      warn(sampled.rollout.report, trained);
      samples_.write(rollout + 1, std::move(sampled.rollout));
      evaluate_if_due();
      // Whoever goes on from a checkpoint finds the samples up to it.
      if (const int64_t every = options_.save.save_interval; every > 0 && (rollout + 1) % every == 0) samples_.wait();
      run_.save_if_due();
      if (critic_) critic_->save_if_due(rollout + 1, rollout + 1 == total_);
    }
    samples_.wait();
  }

  // Its `steps` are those of the whole run.
  void add_critic(int64_t steps) {
    parts_.critic = &critic_->trainer();
    train_plan_.critic_schedule = critic_->schedule(steps);
    train_plan_.critic_not_finite = [this](const train::NotFiniteError& error, std::span<const train::Datum> batch) {
      run_.abandoned(error, batch, algorithm_.value_loss, parts_.critic);
    };
  }

  void check(int64_t rollout, const rl::TrainReport& trained) {
    if (trained.actor_trained)
      check_rollout(options_.checks, {.rollout = rollout,
                                      .logprob_diff = trained.logprob_diff,
                                      .logprob_diff_max = trained.logprob_diff_max,
                                      .kl = trained.kl});
    check_published(options_.checks, run_.trainer().adapter(), *store_.pin(lora::kActor).version(), stream_);
  }

  void warn(const rl::RolloutReport& sampled, const rl::TrainReport& trained) {
    if (trained.abandoned_steps > 0 || !trained.actor_trained) return;  // its means are of a part
    for (const std::string& text :
         warnings_.add({.reward = sampled.reward, .entropy = trained.entropy, .kl = trained.kl}))
      log_.say("warning " + text);
  }

  // On the thread that samples, which reads nothing that training changes.
  SampledRollout sample(const RolloutsAhead::Job& job, const rl::Watch& watch) {
    std::map<int64_t, int64_t> times;
    rl::GatedRollout gated = rl::gated_rollout(
        sampling_parts_, gate_plan_, [&](int64_t first, int64_t count) { return request(job, first, count, times); },
        watch);
    SampledRollout sampled{.rollout = std::move(gated.rollout),
                           .gates = gated.report,
                           .rows_end = job.rows_begin + order_.rows_read(gated.report),
                           .version = job.version.version()};
    if (options_.log_passrate) sampled.pass_rates = rl::pass_rates(rewards_of(sampled.rollout), options_.n_samples);
    sampled.masked = options_.mask_truncated ? rl::mask_truncated(sampled.rollout.trajectories) : 0;
    return sampled;
  }

  void sample_ahead() {
    stream_.synchronize();  // what another stream is about to read is there
    ahead_.emplace(run_.iteration(), run_.data_position(),
                   [this](const RolloutsAhead::Job& job, const std::function<bool()>& stopping) {
                     return sample(job, {.progress =
                                             [this](int64_t done, int64_t of) {
                                               sampling_ = {static_cast<int32_t>(done), static_cast<int32_t>(of)};
                                             },
                                         .interrupted = stopping});
                   });
  }

  SampledRollout next_sampled(int64_t rollout) {
    if (!ahead_) {
      SampledRollout sampled =
          sample({.rollout = rollout, .rows_begin = run_.data_position(), .version = versions_->pin(rollout)},
                 watch(rollout, "sampling"));
      sampler_.release_memory();  // training needs it
      return sampled;
    }
    while (ahead_->next() < total_ && ahead_->next() <= rollout + staleness_.most_ahead() &&
           versions_->has(ahead_->next()))
      ahead_->begin(versions_->pin(ahead_->next()));
    return ahead_->take([&] { wait_for_samples(rollout); });
  }

  void wait_for_samples(int64_t rollout) {
    if (control_.interrupted()) throw Cancelled({.what = "interrupted"});
    const SamplingProgress now = sampling_.load();
    if (now.of > 0) watch(rollout, "sampling").report(now.done, now.of);
  }

  // What a log line says of the rollout that is trained on.
  void look_at(const SampledRollout& sampled) {
    gates_ = sampled.gates;
    pass_rates_ = sampled.pass_rates;
    masked_ = sampled.masked;
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

  // `times`: of each row so far; one that comes again in this rollout gets samples of its own.
  rl::RolloutRequest request(const RolloutsAhead::Job& job, int64_t first, int64_t count,
                             std::map<int64_t, int64_t>& times) {
    rl::RolloutRequest request{.params = {.sampling = sampling_params_,
                                          .n = options_.n_samples,
                                          .rollout = static_cast<uint32_t>(job.rollout)},
                               .policy = job.version.version()->policy,
                               .greedy_baseline = options_.advantage.estimator == rl::Estimator::remax,
                               .on_reward_failure = options_.on_reward_failure};
    for (const int64_t row : order_.rows(job.rows_begin, first, count)) {
      request.prompts.push_back(prompts_.prompts[static_cast<size_t>(row)]);
      request.prompts.back().first_sample = times[row]++ * options_.n_samples;
      request.rows.push_back(prompts_.rows[static_cast<size_t>(row)]);
    }
    return request;
  }

  rl::Watch watch(int64_t rollout, const char* what) {
    return {.progress =
                [this, rollout, what](int64_t done, int64_t of) {
                  log_.progress(fmt::format("rollout {}/{}: {} {}/{}", rollout + 1, total_, what, done, of));
                },
            .interrupted = [this] { return run_.interrupted(); }};
  }

  // `version`: of the actor that was trained.
  void log(int64_t step, const rl::Rollout& rollout, const rl::TrainReport& trained, int64_t version,
           const Pace& pace) {
    // Sampled ahead, an iteration's sampling and training overlap.
    const double iteration_ms =
        ahead_ ? iteration_.ms() : rollout.report.rollout_ms + rollout.report.reward_ms + trained.train_ms;
    OrderedJson line = rollout_metrics(step, rollout, trained, iteration_ms);
    if (!engine_.sampler().capabilities().exact_logprobs) add_mismatch(line, trained.mismatch);
    if (options_.need_spread || options_.on_reward_failure == rl::RewardFailure::drop_group)
      line.update({{"dynamic_sampling/rounds", gates_.rounds},
                   {"dynamic_sampling/sampled_groups", gates_.sampled},
                   {"dynamic_sampling/dropped_groups", gates_.dropped}});
    line.update(order_.metrics());
    if (options_.mask_truncated) line["masked_truncated"] = masked_;
    add_pass_rates(line, "passrate/", pass_rates_);
    if (options_.kl_control.target != 0) line["kl_coef"] = trained.next.kl_reward;
    if (options_.entropy_control.on) line["entropy_coef"] = trained.next.entropy;
    if (algorithm_.correction.is_needed()) add_correction(line, trained);
    if (run_.skipped_steps() > 0) line["abandoned_steps"] = run_.skipped_steps();  // of the run, so far
    add_rollout_metrics(line, rollout.trajectories, version);
    add_memory(line, stream_);
    line.update(engine_.metrics());
    log_.write(line);
    log_.say(rollout_text(step, total_, rollout, trained, iteration_ms, pace.left(step)));
    if (rollout.report.reward_unknown > 0)
      log_.say(unknown_rewards_text(step, total_, gates_.sampled * options_.n_samples, rollout.report, trained));
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

  rollout::SamplingParams with_stop_ids(rollout::SamplingParams params) const {
    params.stop_token_ids.insert(params.stop_token_ids.end(), base_.eos.begin(), base_.eos.end());
    return params;
  }

  int64_t num_prompts() const { return static_cast<int64_t>(prompts_.prompts.size()); }

  void evaluate_if_due() {
    const int64_t step = run_.iteration();
    if (options_.eval_interval == 0) return;
    const bool due = step == 0 ? options_.eval_before_train : step >= total_ || step % options_.eval_interval == 0;
    if (!due || best_.evaluated >= step) return;
    if (ahead_) run_.interruptible([&] { ahead_->wait_until_idle([&] { wait_for_samples(step); }); });
    std::optional<double> deciding;
    for (size_t i = 0; i < held_out_.size(); ++i) {
      const EvalResult result = run_.interruptible(
          [&] { return held_out_.evaluate(i, sampler_, versions_->newest(), judge_, log_, control_); });
      sampler_.release_memory();
      if (i == held_out_.deciding()) deciding = result.accuracy;
      if (step == resumed_at_ && log_.has_evaluation(held_out_.name(i))) continue;
      log_.write(held_out_.line(i, step, result));
      log_.say(fmt::format("eval {} after {} rollouts: {}, {:.1f} tokens", held_out_.name(i), step,
                           accuracy_text(result), result.response_len));
    }
    // The smallest share of wrong answers is the lowest loss.
    best_.evaluated = step;
    const bool better = deciding && best_.add(step, 1 - *deciding, 0);
    run_.set_evaluations(best_.json());
    if (!better || !options_.save_best) return;
    run_.save();
    mark_best();
  }

  // A run resumed from elsewhere need not have the best checkpoint in its own directory.
  void mark_best() {
    if (!run_.keeps()) return;
    if (!fs::is_directory(fs::Path(options_.save.save) / checkpoint::iteration_directory_name(best_.iteration))) return;
    checkpoint::mark_best(options_.save.save, best_.iteration);
    run_.still_reads("best", best_.iteration);
  }

  const RlOptions& options_;
  const Control& control_;
  const std::unique_ptr<rl::Reward> reward_;  // first: its processes begin before there are threads
  const EvalRewards eval_rewards_{options_};  // as well
  const StalenessRule staleness_ = options_.staleness;
  Stream stream_;
  // Sampling has a stream of its own where training goes on meanwhile.
  const std::unique_ptr<Stream> sampling_stream_;
  const Base base_;
  parallel::Group& group_;
  const text::Tokenizer tokenizer_;
  const PromptSet prompts_;
  const HeldOutPrompts held_out_{options_, eval_rewards_, base_, tokenizer_};
  PromptOrder order_;
  const int64_t total_;
  const BaseCheck base_check_{options_.checks, *base_.model, stream_};
  // Loaded before memory is planned.
  const std::optional<Base> other_model_ = load_teacher_model(options_, base_, stream_, control_);
  TrainingRun run_;
  const int64_t resumed_at_ = run_.iteration();
  RolloutEngine engine_;
  // Of several ranks: each generates and grades its share.
  rollout::DealtSampler dealt_sampler_{engine_.sampler(), group_, [this] { return run_.interrupted(); }};
  rl::DealtReward dealt_reward_{*reward_, group_, [this] { return run_.interrupted(); }};
  rollout::Sampler& sampler_ = group_.size() > 1 ? dealt_sampler_ : engine_.sampler();
  rl::Reward& judge_ = group_.size() > 1 ? dealt_reward_ : *reward_;
  std::optional<Critic> critic_;
  versions::Store store_;
  std::optional<SampledVersions> versions_;  // made when the sinks are there
  Policies policies_{options_, base_, other_model_, run_, stream_, control_};
  rl::RlParts parts_{sampler_, run_.trainer(), judge_, store_, &tokenizer_, policies_.reference(), policies_.teacher(),
                     nullptr,  &group_};
  rl::RlParts sampling_parts_ = parts_;  // of the thread that samples
  rl::Algorithm algorithm_ = algorithm_of(options_);
  const rl::GatePlan gate_plan_{.need_spread = options_.need_spread,
                                .need_rewards = options_.on_reward_failure == rl::RewardFailure::drop_group,
                                .groups = options_.rollout_batch_size,
                                .prompts = std::max(options_.over_sampling, options_.rollout_batch_size),
                                .max_rounds = options_.max_filter_rounds};
  rl::GateReport gates_;  // of the last rollout, as the next two
  std::vector<rl::PassRate> pass_rates_;
  int64_t masked_ = 0;
  rl::TrainPlan train_plan_;
  RolloutSamples samples_{options_.save, run_.saved_iteration(), tokenizer_, group_};
  RunLog log_;
  RunWarnings warnings_;
  BestSoFar best_ = BestSoFar::from(run_.evaluations(), "train_state.json: evaluations");
  rollout::SamplingParams sampling_params_;
  Stopwatch iteration_;
  std::atomic<SamplingProgress> sampling_ = SamplingProgress();
  std::optional<RolloutsAhead> ahead_;  // last: its thread uses the others
};

}  // namespace

void run_rl(const RlOptions& options, const Control& control) {
  const SaveDirectory mine(control.rank == 0 ? options.save.save : "", control);
  std::unique_ptr<parallel::Group> group;
  try {
    RlRun(options, control, group).train();
  } catch (...) {
    if (group) parallel::fail(*group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep::recipes
