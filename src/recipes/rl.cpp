#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "recipes/bad_rows.h"
#include "recipes/commands.h"
#include "recipes/data_order.h"
#include "recipes/evaluate.h"
#include "recipes/save_directory.h"
#include "recipes/step_line.h"
#include "recipes/steps.h"
#include "rl/advantage.h"
#include "rl/batch.h"
#include "rl/policy_logprobs.h"
#include "rl/reference.h"
#include "rl/reward_shaping.h"
#include "rl/rule_reward.h"
#include "rollout/local/engine.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

namespace lockstep::recipes {

namespace {

// What one rollout made: its samples in order of (prompt, sample), and their averages.
struct RolloutResult {
  std::vector<rl::Trajectory> trajectories;
  double reward = 0, response_len = 0;
  int64_t tokens = 0;  // prompt and response, as trained on
  double rollout_ms = 0, reward_ms = 0;
  std::optional<double> kl;
};

class RlRun {
 public:
  RlRun(const RlOptions& options, const Control& control)
      : options_(options),
        control_(control),
        stream_(stream_options(options.base)),
        base_(load_base(options.base, stream_, control)),
        tokenizer_(load_tokenizer(base_)),
        prompts_(read(options.prompt_data, options.input_key, options.label_key)),
        eval_prompts_(read_eval_sets()),
        order_(num_prompts(), options.shuffle, options.sampling.seed),
        total_(num_rollouts()),
        steps_per_rollout_(options.rollout_batch_size * options.n_samples / options.training.global_batch_size),
        run_(options.adapter, options.optimizer, options.training, options.save, base_, stream_, control, settings(),
             options.sampling.temperature, EnginePlan{options.kv_bytes}),
        engine_(base_.model,
                {.kv_bytes = stream_.device() == Device::cuda ? run_.memory().kv : options.kv_bytes,
                 .max_sequences = options.max_sequences,
                 .tokenizer = &tokenizer_},
                stream_),
        log_(options.save.save, run_.saved_iteration(), control) {
    sampling_ = with_stop_ids(options.sampling);
    sampling_.logprob_temperature = options.sampling.temperature;
    eval_sampling_ = with_stop_ids(options.eval_sampling);
    run_.set_schedule(total_ * steps_per_rollout_);
    store_.add(sink_);
    actor_ = store_.publish(lora::kActor, run_.trainer().adapter(), run_.version()).policy;
  }

  void train() {
    *control_.info << fmt::format("data    {} prompts from {}{}\n", num_prompts(), options_.prompt_data,
                                  prompts_.dropped ? fmt::format(" ({} too long, dropped)", prompts_.dropped) : "");
    report_bad_rows(prompts_.bad_rows, options_.max_bad_rows, *control_.info);
    for (const PromptSet& set : eval_prompts_) report_bad_rows(set.bad_rows, options_.max_bad_rows, *control_.info);
    run_.iterate([&] { iterations(); });
    run_.finish();
  }

 private:
  void iterations() {
    // Of a run that was interrupted between a checkpoint and its evaluation, this is the evaluation.
    evaluate_if_due();
    if (run_.iteration() >= total_) *control_.info << fmt::format("note    all {} rollouts were done before\n", total_);
    const Pace pace(run_.iteration(), total_);
    for (int64_t rollout = run_.iteration(); rollout < total_; ++rollout) {
      iterate(rollout, run_.interruptible([&] { return sample(rollout); }), pace);
    }
  }

  PromptSet read(const std::string& path, const std::string& input_key, const std::string& label_key) const {
    const int64_t context = options_.sampling.max_length;
    const int64_t room = (context > 0 ? std::min(context, base_.config.max_positions) : base_.config.max_positions) - 1;
    const int64_t limit = options_.max_prompt_len > 0 ? std::min(options_.max_prompt_len, room) : room;
    return read_prompts({.path = path,
                         .input_key = input_key,
                         .label_key = label_key,
                         .reward = options_.reward,
                         .max_length = limit,
                         .vocab_size = base_.config.vocab_size,
                         .chat = PromptRenderer(base_.path.string(), options_.chat),
                         .max_bad_rows = options_.max_bad_rows},
                        tokenizer_);
  }

  std::vector<PromptSet> read_eval_sets() const {
    std::vector<PromptSet> sets;
    for (const EvalSet& set : options_.eval_sets)
      sets.push_back(read(set.path, options_.eval_input_key.empty() ? options_.input_key : options_.eval_input_key,
                          options_.eval_label_key.empty() ? options_.label_key : options_.eval_label_key));
    return sets;
  }

  int64_t num_rollouts() const {
    if (options_.num_rollout) return *options_.num_rollout;
    const int64_t rollouts = *options_.num_epoch * num_prompts() / options_.rollout_batch_size;
    if (rollouts == 0)
      throw ConfigError({.what = "the prompts do not fill one rollout",
                         .where = "--num-epoch",
                         .got = fmt::format("{} x {} prompts", *options_.num_epoch, num_prompts()),
                         .wanted = fmt::format("at least --rollout-batch-size = {}", options_.rollout_batch_size),
                         .attempt = "more epochs, a smaller batch, or --num-rollout"});
    return rollouts;
  }

  // What decides which prompts a rollout reads, how they are sampled, and how a rollout is cut into steps.
  OrderedJson settings() const {
    return {{"prompts of --prompt-data", num_prompts()},
            {"tokens and labels of --prompt-data", prompts_.digest().substr(0, 16)},
            {"--rollout-batch-size", options_.rollout_batch_size},
            {"--n-samples-per-prompt", options_.n_samples},
            {"--global-batch-size", options_.training.global_batch_size},
            {"--rollout-shuffle", options_.shuffle},
            {"--rollout-seed", options_.sampling.seed},
            {"--seed", options_.training.seed}};
  }

  rollout::SamplingParams with_stop_ids(rollout::SamplingParams params) const {
    params.stop_token_ids.insert(params.stop_token_ids.end(), base_.eos.begin(), base_.eos.end());
    return params;
  }

  int64_t num_prompts() const { return static_cast<int64_t>(prompts_.prompts.size()); }
  bool wants_reference() const { return options_.use_kl_loss || options_.kl_reward_coef != 0; }

  RolloutResult sample(int64_t rollout) {
    RolloutResult result;
    std::vector<rollout::Prompt> batch;
    const std::vector<int64_t> rows = order_.rows(run_.data_position(), options_.rollout_batch_size);
    std::map<int64_t, int64_t> times;  // a row that comes again in this rollout gets samples of its own
    for (int64_t row : rows) {
      batch.push_back(prompts_.prompts[static_cast<size_t>(row)]);
      batch.back().first_sample = times[row]++ * options_.n_samples;
    }
    const Stopwatch rollout_watch;
    const rollout::GroupParams params{
        .sampling = sampling_, .n = options_.n_samples, .rollout = static_cast<uint32_t>(rollout)};
    const auto samples = rollout::sample_groups(engine_, batch, params, actor_, [&](int64_t done, int64_t of) {
      if (control_.interrupted()) throw Cancelled({.what = "interrupted during a rollout"});
      log_.progress(fmt::format("rollout {}/{}: {}/{} samples", rollout + 1, total_, done, of));
    });
    engine_.release_memory();
    result.rollout_ms = rollout_watch.ms();

    const Stopwatch reward_watch;
    std::vector<std::string> labels;
    for (const int64_t row : rows) labels.push_back(prompts_.labels[static_cast<size_t>(row)]);
    result.trajectories = rl::make_trajectories(batch, labels, samples,
                                                {.tokenizer = &tokenizer_, .stop_token_ids = sampling_.stop_token_ids});
    const std::vector<float> rewards = reward_.grade(result.trajectories);
    for (size_t i = 0; i < rewards.size(); ++i) {
      rl::Trajectory& trajectory = result.trajectories[i];
      trajectory.reward = rewards[i];
      result.reward += rewards[i];
      result.response_len += static_cast<double>(trajectory.response_len());
      result.tokens += static_cast<int64_t>(trajectory.tokens.size()) - 1;
    }
    result.reward /= static_cast<double>(samples.size());
    result.response_len /= static_cast<double>(samples.size());
    result.reward_ms = reward_watch.ms();
    return result;
  }

  // The rollout as the trainer reads it, with everything that the loss needs.
  std::vector<train::Datum> prepare(RolloutResult& result) {
    const auto between = [&](int64_t) {
      if (control_.interrupted()) throw Cancelled({.what = "interrupted before a step"});
    };
    std::vector<train::Datum> datums = rl::make_datums(result.trajectories);
    rl::set_policy_logprobs(datums, run_.trainer(), true);
    if (wants_reference()) {
      rl::set_ref_logprobs(datums, run_.trainer(), between);
      result.kl = rl::mean_kl(datums, options_.training.per_token_loss);
    }
    std::vector<float> rewards;
    for (const rl::Trajectory& trajectory : result.trajectories) rewards.push_back(trajectory.reward);
    rewards =
        rl::shape_rewards(rewards, datums, {.kl_coef = options_.kl_reward_coef, .kl_type = options_.loss.kl_type});
    rl::set_advantages(datums, result.trajectories, rewards,
                       {.center = options_.normalize_rewards, .normalize_std = options_.normalize_std});
    return datums;
  }

  // Trains on the rollout, publishes, logs, saves, evaluates.
  void iterate(int64_t rollout, RolloutResult result, const Pace& pace) {
    const Stopwatch train_watch;
    const int64_t sampled_version = run_.version();
    const std::vector<train::Datum> datums = run_.interruptible([&] { return prepare(result); });
    train::PolicyLoss loss = options_.loss;
    if (!options_.use_kl_loss) loss.kl_coef = 0;
    double entropy = 0, logprob_diff = 0, grad_norm = 0;
    const double lr = run_.learning_rate();
    for (int64_t step = 0; step < steps_per_rollout_; ++step) {
      const auto batch = rl::step_batch(datums, step, options_.training.global_batch_size);
      const auto on_progress = [&](int64_t done) {
        log_.progress(fmt::format("rollout {}/{}: training {}/{}", rollout + 1, total_,
                                  step * options_.training.global_batch_size + done, datums.size()));
      };
      // Once a step of this rollout is taken the others follow: a checkpoint lies between rollouts.
      const train::StepReport report = run_.step(batch, loss, on_progress, step == 0);
      entropy += report.metrics.entropy / static_cast<double>(steps_per_rollout_);
      grad_norm = std::max(grad_norm, report.grad_norm);
      // Only the first batch is trained by the version that sampled it.
      if (step == 0) logprob_diff = report.metrics.logprob_diff_max;
    }
    // A GPU gives it to the next rollout's keys and values; the CPU would only pay for the pages again.
    if (stream_.device() == Device::cuda) run_.trainer().release_memory();
    const double train_ms = train_watch.ms();
    const versions::PublishReport published = store_.publish(lora::kActor, run_.trainer().adapter());
    actor_ = published.policy;
    run_.set_version(actor_.version);
    run_.completed(options_.rollout_batch_size);

    const double total_ms = result.rollout_ms + result.reward_ms + train_ms;
    const double tokens_per_s = 1000.0 * static_cast<double>(result.tokens) / total_ms;
    log_.write({{"step", rollout + 1},
                {"reward", result.reward},
                {"kl", result.kl ? OrderedJson(*result.kl) : OrderedJson(nullptr)},
                {"entropy", entropy},
                {"response_len", result.response_len},
                {"logprob_diff_max", logprob_diff},
                {"version", sampled_version},
                {"grad_norm", grad_norm},
                {"lr", lr},
                {"rollout_ms", result.rollout_ms},
                {"reward_ms", result.reward_ms},
                {"train_ms", train_ms},
                {"publish_ms", published.microseconds / 1000},
                {"tokens_per_s", tokens_per_s}});
    log_.say(rollout_line({.step = rollout + 1,
                           .of = total_,
                           .reward = result.reward,
                           .entropy = entropy,
                           .response_len = result.response_len,
                           .logprob_diff = logprob_diff,
                           .tokens_per_s = tokens_per_s,
                           .kl = result.kl,
                           .left = pace.left(rollout + 1)}));
    run_.save_if_due();
    evaluate_if_due();
  }

  void evaluate_if_due() {
    const int64_t step = run_.iteration();
    if (options_.eval_interval == 0) return;
    const bool due = step == 0 ? options_.eval_before_train : step >= total_ || step % options_.eval_interval == 0;
    if (!due) return;
    for (size_t i = 0; i < eval_prompts_.size(); ++i) {
      if (step == resumed_at_ && log_.has_evaluation(options_.eval_sets[i].name)) continue;
      const EvalResult result = run_.interruptible([&] {
        return evaluate(engine_, actor_, tokenizer_,
                        {.prompts = &eval_prompts_[i],
                         .sampling = eval_sampling_,
                         .samples = options_.eval_samples,
                         .reward = &reward_},
                        log_, control_);
      });
      engine_.release_memory();
      log_.write({{"step", step}, {"eval", options_.eval_sets[i].name}, {"accuracy", result.accuracy}});
      log_.say(fmt::format("eval {} after {} rollouts: accuracy {:.4f}, {:.1f} tokens", options_.eval_sets[i].name,
                           step, result.accuracy, result.response_len));
    }
  }

  const RlOptions& options_;
  const Control& control_;
  Stream stream_;
  const Base base_;
  const text::Tokenizer tokenizer_;
  const PromptSet prompts_;
  const std::vector<PromptSet> eval_prompts_;
  DataOrder order_;
  const int64_t total_, steps_per_rollout_;
  TrainingRun run_;
  const int64_t resumed_at_ = run_.iteration();
  rollout::Engine engine_;
  versions::MemorySink sink_{engine_.versions()};
  versions::Store store_;
  lora::PolicyId actor_;  // what the next rollout samples with
  rl::RuleReward reward_{options_.reward};
  RunLog log_;
  rollout::SamplingParams sampling_, eval_sampling_;
};

}  // namespace

void run_rl(const RlOptions& options, const Control& control) {
  const SaveDirectory mine(options.save.save, control);
  RlRun(options, control).train();
}

}  // namespace lockstep::recipes
