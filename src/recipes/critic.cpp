#include "recipes/critic.h"

#include <fmt/format.h>

#include <cstring>
#include <ostream>

#include "checkpoint/adapter_directory.h"
#include "load/adapter.h"
#include "lora/init.h"
#include "model/adapter_extras.h"
#include "recipes/adapter.h"
#include "recipes/rollout_log.h"
#include "rl/value_training.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kName = "critic";                 // as a policy of checkpoints
constexpr const char* kPoliciesDirectory = "policies";  // of a checkpoint (checkpoint/train_state.h)

// The critic's directory that `path` is or leads to: a checkpoint's, a save directory's newest, or as for any adapter.
fs::Path critic_directory(const std::string& path) {
  const auto inside = [](const fs::Path& checkpoint) { return checkpoint / kPoliciesDirectory / kName; };
  if (fs::exists(inside(path))) return inside(path);
  if (!fs::exists(fs::Path(path) / checkpoint::kAdapterConfigFile) && fs::is_directory(path))
    if (const auto newest = checkpoint::latest_iteration(path)) {
      const fs::Path found = inside(fs::Path(path) / checkpoint::iteration_directory_name(*newest));
      if (fs::exists(found)) return found;
    }
  return checkpoint::adapter_directory(path).value_or(path);
}

lora::LoraConfig with_head(lora::LoraConfig config, const Base& base) {
  config.value_width = base.config.width;
  return config;
}

std::shared_ptr<const lora::AdapterLayout> layout_of(const lora::LoraConfig& config, const Base& base) {
  return lora::resolve_layout(config, model::linear_modules(base.config));
}

// Where a fresh critic begins: the adapter that it or the actor begins as; empty: new factors.
std::string beginning(const RlOptions& options) {
  const std::string path = options.critic.load.empty() ? options.adapter.adapter_path : options.critic.load;
  if (!path.empty() && options.critic.rank)
    throw ConfigError({.what = "an adapter to start from has a rank already",
                       .where = "CriticOptions::rank",
                       .got = fmt::format("{}, and {}", *options.critic.rank, path),
                       .attempt = "CriticOptions::load or CriticOptions::rank, not both"});
  return path;
}

AdapterOptions fresh_options(const RlOptions& options) {
  AdapterOptions adapter = options.adapter;
  adapter.config.rank = options.critic.rank.value_or(adapter.config.rank);
  return adapter;
}

lora::AdapterVersion loaded(const std::string& path, const Base& base, const Control& control) {
  const checkpoint::PeftDirectory directory(critic_directory(path));
  const load::CheckedAdapter checked = load::check_adapter(directory, base, directory.config());
  require_trainable(checked.layout->config);
  lora::AdapterVersion adapter = load::load_adapter(checked, directory.read_weights(), base);
  print_notes(checked.notes, control);
  adapter.policy = {};
  return adapter;
}

// What a fresh run begins with.
lora::AdapterVersion starting_critic(const RlOptions& options, const Base& base, const Control& control) {
  const std::string path = beginning(options);
  lora::AdapterVersion adapter = path.empty()
                                     ? starting_adapter(fresh_options(options), base, options.training.seed, control)
                                     : loaded(path, base, control);
  if (adapter.layout->value_head) return adapter;
  return with_value_head(adapter, base, options.training.seed);
}

void require_head(const lora::AdapterVersion& critic) {
  if (critic.layout->value_head) return;
  throw FormatError({.what = "the checkpoint's critic has no value head",
                     .where = fmt::format("{}/{}", kPoliciesDirectory, kName),
                     .attempt = "a checkpoint of a run with a critic"});
}

class Critic : public SecondTrainer {
 public:
  Critic(const RlOptions& options, const Base& base, TrainingRun& run, Stream& stream, const Control& control)
      : options_(options), base_(base), run_(run), is_writer_(control.rank == 0) {
    *control.info << "critic\n";
    auto start = run.resumed_policy(kName);
    if (!start) start = starting_critic(options, base, control);
    require_head(*start);
    start->layout = with_dropout(start->layout, run.trainer().layout().config.dropout);
    describe_adapter(*start, base, control);
    train::TrainerOptions trainer_options = run.trainer_options();
    trainer_options.temperature = 1;
    trainer_.emplace(base.model, start->layout, start->weights, trainer_options, stream, run.group());
    run.keep_trainer(kName, *trainer_);
    if (is_writer_ && !options.critic.save.empty()) fs::require_writable_directory(options.critic.save);
  }

  void set_steps(int64_t steps) override {
    schedule_ = run_.schedule();
    schedule_.lr = options_.critic.lr.value_or(schedule_.lr);
    schedule_.warmup_steps = options_.critic.warmup_steps;
    if (!options_.optimizer.decay_steps) schedule_.decay_steps = steps;
    if (schedule_.warmup_steps > schedule_.decay_steps)
      throw ConfigError({.what = "the critic's warm-up is longer than the run",
                         .where = "CriticOptions::warmup_steps",
                         .got = std::to_string(schedule_.warmup_steps),
                         .wanted = fmt::format("at most {}", schedule_.decay_steps)});
  }

  void prepare(std::span<train::Datum> datums, const train::Progress& between, parallel::Group* group) override {
    rl::set_values(datums, *trainer_, between, group);
  }

  rl::SecondTrainerReport train(std::span<const train::Datum> datums, int64_t batch_size,
                                const train::Reduction& reduction, const rl::Watch& watch) override {
    const train::ValueLoss loss{.clip = options_.critic.value_clip};
    const auto abandoned = [&](const train::NotFiniteError& error, std::span<const train::Datum> batch) {
      run_.abandoned(error, batch, loss, &*trainer_);
    };
    const rl::ValueReport report = rl::train_values(*trainer_, datums,
                                                    {.batch_size = batch_size,
                                                     .schedule = schedule_,
                                                     .loss = loss,
                                                     .reduction = reduction,
                                                     .on_not_finite = abandoned},
                                                    watch);
    const bool learned = report.taken_steps > 0;
    const auto of_steps = [learned](double value) { return learned ? OrderedJson(value) : OrderedJson(nullptr); };
    // As slime and miles name what a critic logs.
    return {.name = kName,
            .metrics = {{"value_loss", of_steps(report.value_loss)},
                        {"value_clipfrac", of_steps(report.clip_fraction)},
                        {"values", or_null(report.value)},
                        {"returns", or_null(report.wanted)},
                        {"explained_variance", or_null(report.explained_variance)},
                        {"critic-grad_norm", of_steps(report.grad_norm)},
                        {"critic-lr", report.lr}},
            .text = learned ? fmt::format("value loss {:.4f}", report.value_loss) : ""};
  }

  void release_memory() override { trainer_->release_memory(); }

  // CriticOptions::save: writes DIR/iter_NNNNNNN, a PEFT directory, at the run's interval.
  void save_if_due(int64_t iteration, bool last) override {
    const int64_t interval = options_.save.save_interval;
    if (!is_writer_ || options_.critic.save.empty() || (!last && (interval == 0 || iteration % interval != 0))) return;
    TrainingSnapshot snapshot(iteration);
    SnapshotMemory memory;
    snapshot.add_policy(kName, trainer_->adapter(), iteration, base_, memory);
    snapshot.save_policy(fs::Path(options_.critic.save) / checkpoint::iteration_directory_name(iteration));
    checkpoint::mark_latest(options_.critic.save, iteration);
  }

 private:
  const RlOptions& options_;
  const Base& base_;
  TrainingRun& run_;
  const bool is_writer_;  // one rank is
  std::optional<train::Trainer> trainer_;
  train::Schedule schedule_;
};

bool is_asked_for(const RlOptions& options) {
  return options.advantage.estimator == rl::Estimator::ppo;
}

// That of CriticOptions::load, else of the actor's, with a value head.
std::shared_ptr<const lora::AdapterLayout> starting_layout_of(const RlOptions& options, const Base& base) {
  const std::string path = beginning(options);
  if (path.empty()) return layout_of(with_head(fresh_options(options).config, base), base);
  const checkpoint::PeftDirectory directory(critic_directory(path));
  require_trainable(directory.config());
  return layout_of(with_head(directory.config(), base), base);
}

std::unique_ptr<SecondTrainer> make(const RlOptions& options, const Base& base, TrainingRun& run, Stream& stream,
                                    const Control& control) {
  return std::make_unique<Critic>(options, base, run, stream, control);
}

int64_t rollouts_alone(const RlOptions& options) {
  return options.critic.only_rollouts;
}

void add_settings(OrderedJson& settings, const RlOptions& options) {
  const CriticOptions &critic = options.critic, usual;
  if (critic.value_clip != usual.value_clip) settings["--value-clip"] = critic.value_clip;
  if (critic.lr) settings["--critic-lr"] = *critic.lr;
  if (critic.warmup_steps != usual.warmup_steps) settings["--critic-lr-warmup-iters"] = critic.warmup_steps;
  if (critic.only_rollouts != usual.only_rollouts) settings["--num-critic-only-steps"] = critic.only_rollouts;
  if (critic.rank) settings["--critic-lora-rank"] = *critic.rank;
}

void describe(const RlOptions& options, std::ostream& out) {
  const CriticOptions& critic = options.critic;
  out << fmt::format("advantages  GAE of the critic's values, gamma {:g}, lambda {:g}; values are clipped at {:g}\n",
                     options.advantage.gamma, options.advantage.lambda, critic.value_clip);
  out << fmt::format(
      "critic      lr {:g}, {} steps of warm-up{}{}{}\n", critic.lr.value_or(options.optimizer.schedule.lr),
      critic.warmup_steps, critic.only_rollouts > 0 ? fmt::format(", alone for {} rollouts", critic.only_rollouts) : "",
      critic.load.empty() ? "" : ", from " + critic.load, critic.save.empty() ? "" : ", also saved in " + critic.save);
}

}  // namespace

const SecondTrainerKind kCritic{.name = kName,
                                .is_asked_for = is_asked_for,
                                .layout = starting_layout_of,
                                .make = make,
                                .rollouts_alone = rollouts_alone,
                                .add_settings = add_settings,
                                .describe = describe};

lora::AdapterVersion with_value_head(const lora::AdapterVersion& adapter, const Base& base, uint64_t seed) {
  const lora::AdapterLayout& before = *adapter.layout;
  lora::AdapterVersion critic{.base = adapter.base, .layout = layout_of(with_head(before.config, base), base)};
  const lora::AdapterLayout& after = *critic.layout;
  const Buffer old = lora::host_weights(*adapter.weights, before, *base.stream);
  Buffer flat = lora::initial_weights(after, seed);  // of which the head stays
  const auto move = [&](int64_t to, int64_t from, int64_t count) {
    std::memcpy(flat.f32() + to, old.f32() + from, static_cast<size_t>(count) * sizeof(float));
  };
  move(0, 0, before.num_trained);
  move(after.num_trained, before.num_trained, before.num_floats - before.num_trained);
  critic.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(flat), after, *base.stream));
  return model::with_extras(std::move(critic), base.model->weights(), *base.stream);
}

}  // namespace lockstep::recipes
