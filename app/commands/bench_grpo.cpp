// lockstep bench: one GRPO iteration, rollout and training step. Samples end at random: every new_tokens-th token of
// the vocabulary is a stop token, which a model of random weights draws with a chance of about one in new_tokens, so
// lengths are geometric with that mean, cut off at four times it.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "commands/bench.h"
#include "kernels/kernel_choice.h"
#include "recipes/rollouts_ahead.h"
#include "recipes/run_log.h"
#include "rl/train.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

namespace lockstep::commands {

namespace {

constexpr uint32_t kWarmRollouts = 2;

struct Iteration {
  double rollout_s = 0, train_s = 0, logprob_diff = 0;
  int64_t new_tokens = 0, trained_tokens = 0;

  double seconds() const { return rollout_s + train_s; }
};

std::vector<rollout::Prompt> prompts_around(const Bench& bench) {
  std::vector<rollout::Prompt> prompts;
  const int64_t mean = bench.work.grpo_prompt_tokens, spread = mean / 5;
  for (int64_t i = 0; i < bench.work.grpo_prompts; ++i) {
    const int64_t tokens = mean - spread + (2 * spread * i) / std::max<int64_t>(1, bench.work.grpo_prompts - 1);
    prompts.push_back({.tokens = bench.random_tokens(std::max<int64_t>(1, tokens), 1000 + static_cast<uint32_t>(i)),
                       .row = static_cast<uint32_t>(i)});
  }
  return prompts;
}

rollout::GroupParams group_params(const Bench& bench) {
  rollout::GroupParams params;
  params.n = bench.work.grpo_samples;
  params.sampling.max_tokens = 4 * bench.work.new_tokens;
  for (int64_t id = 0; id < bench.base.config.vocab_size; id += bench.work.new_tokens)
    params.sampling.stop_token_ids.push_back(static_cast<int32_t>(id));
  return params;
}

// Their spread is what a group's advantages need.
class RandomReward : public rl::Reward {
 public:
  Ticket submit(std::vector<rl::RewardSample> samples) override {
    Graded graded{.ticket = next_++};
    for (const rl::RewardSample& sample : samples) {
      const auto group = static_cast<uint32_t>(sample.group), index = static_cast<uint32_t>(sample.index);
      graded.scores.push_back(rl::Score::known(uniform01(philox(11, {rollout, group, index, 0})[0])));
    }
    graded_.push_back(std::move(graded));
    return graded_.back().ticket;
  }
  std::vector<Graded> poll(Deadline /*deadline*/) override { return std::exchange(graded_, {}); }
  void cancel(Ticket ticket) override {
    std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
  }

  uint32_t rollout = 0;

 private:
  Ticket next_ = 0;
  std::vector<Graded> graded_;
};

class Loop {
 public:
  // `sampling`: the engine's stream.
  Loop(Bench& bench, Stream& sampling)
      : bench_(bench),
        plan_(bench.plan(recipes::EnginePlan{})),
        trainer_(bench.base.model, bench.adapter.layout, bench.adapter.weights,
                 {.max_tokens = plan_.max_tokens, .recompute = plan_.recompute}, bench.stream),
        engine_(bench.base.model, engine_options(), sampling),
        request_{.prompts = prompts_around(bench), .params = group_params(bench)} {
    store_.add(sink_);
    actor_ = store_.publish(lora::kActor, trainer_.adapter()).policy;
  }

  Iteration run(uint32_t rollout) {
    const Stopwatch rollout_watch;
    const rl::Rollout sampled = sample(rollout, actor_);
    engine_.release_memory();
    Iteration it{.rollout_s = rollout_watch.ms() / 1000, .trained_tokens = sampled.report.tokens};
    for (const rl::Trajectory& trajectory : sampled.trajectories) it.new_tokens += trajectory.response_len();

    const Stopwatch train_watch;
    const rl::TrainReport trained = rl::rl_train(parts_, rl::grpo(), sampled, plan_of(sampled, plan_.is_bounded()));
    actor_ = trained.published.policy;
    bench_.stream.synchronize();
    it.train_s = train_watch.ms() / 1000;
    it.logprob_diff = *trained.logprob_diff_max;  // there is no dropout
    return it;
  }

  // Seconds of `count` iterations after a warm-up, where each rollout is sampled with the version before the newest
  // while the one before it is trained on. `diff`: the largest, of a log-prob.
  std::vector<double> run_ahead(int64_t count, double& diff) {
    run(0);                            // kernels are chosen by timing them, while nothing else runs
    store_.set_keep(lora::kActor, 3);  // the rollout's, the one that is trained on, and the newest
    bench_.stream.synchronize();
    recipes::RolloutsAhead ahead(0, 0, [this](const recipes::RolloutsAhead::Job& job, const auto&) {
      recipes::SampledRollout sampled;
      sampled.version = job.version.version();
      sampled.rollout = sample(static_cast<uint32_t>(job.rollout), sampled.version->policy);
      return sampled;
    });
    ahead.begin(store_.pin(lora::kActor));
    std::vector<double> seconds;
    double train_ms = 0;
    for (int64_t i = 0; i < kWarmRollouts + count; ++i) {
      const Stopwatch clock;
      ahead.begin(store_.pin(lora::kActor));
      const recipes::SampledRollout sampled = ahead.take();
      if (train_ms > 0) ahead.wait_for_tail(train_ms);
      const Stopwatch training;
      rl::TrainPlan plan = plan_of(sampled.rollout, false);
      plan.version_of = [version = sampled.version](int64_t) { return version; };
      plan.measure_logprobs = i == 0;  // costs a forward
      const rl::TrainReport trained = rl::rl_train(parts_, rl::grpo(), sampled.rollout, plan);
      train_ms = training.ms();
      if (trained.logprob_diff_max) diff = std::max(diff, *trained.logprob_diff_max);
      if (i >= kWarmRollouts) seconds.push_back(clock.ms() / 1000);
    }
    return seconds;
  }

 private:
  rl::Rollout sample(uint32_t rollout, const lora::PolicyId& policy) {
    request_.params.rollout = reward_.rollout = rollout;
    request_.policy = policy;
    return rl::rl_collect(parts_, rl::rl_submit(parts_, request_));
  }
  static rl::TrainPlan plan_of(const rl::Rollout& sampled, bool release_memory) {
    return {.batch_size = static_cast<int64_t>(sampled.trajectories.size()),
            .schedule = {.lr = 1e-5},
            .release_memory = release_memory};
  }
  rollout::EngineOptions engine_options() const {
    rollout::EngineOptions options;
    options.max_sequences = std::max(options.max_sequences, bench_.work.grpo_prompts * bench_.work.grpo_samples);
    options.kv_bytes = plan_.engine_kv_bytes();
    return options;
  }

  Bench& bench_;
  const recipes::MemoryPlan plan_;
  train::Trainer trainer_;
  rollout::Engine engine_;
  versions::MemorySink sink_{engine_.versions()};
  versions::Store store_;
  RandomReward reward_;
  rl::RlParts parts_{engine_, trainer_, reward_, store_};
  rl::RolloutRequest request_;
  lora::PolicyId actor_;
};

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Seconds of the same rollouts, in order.
void report_ahead(Bench& bench, const std::vector<double>& in_turn_s, const std::vector<double>& ahead_s) {
  const double medians = median(ahead_s) / median(in_turn_s), means = mean_of(ahead_s) / mean_of(in_turn_s);
  bench.report.results["grpo_step_in_turn_each_s"] = in_turn_s;
  bench.report.results["grpo_step_ahead_each_s"] = ahead_s;
  bench.report.results["grpo_step_mean_s"] = mean_of(in_turn_s);
  bench.report.results["grpo_step_ahead_mean_s"] = mean_of(ahead_s);
  bench.report.results["grpo_step_ahead_over_in_turn"] = {{"medians", medians}, {"means", means}};
  bench.report.result("grpo_step_ahead_s", median(ahead_s),
                      fmt::format("s        the same rollouts with --max-staleness 1: {:.3f} of those in turn by "
                                  "medians, {:.3f} by means of {} ({:.2f} and {:.2f} s)",
                                  medians, means, ahead_s.size(), mean_of(ahead_s), mean_of(in_turn_s)));
}

}  // namespace

void bench_grpo(Bench& bench) {
  constexpr double kEnough = 30;  // seconds
  std::vector<Iteration> iterations;
  double spent = 0, diff = 0;
  {
    Loop loop(bench, bench.stream);
    // Warm: records the graphs of a batch that shrinks.
    for (uint32_t rollout = 0; rollout < kWarmRollouts; ++rollout) loop.run(rollout);
    do {
      iterations.push_back(loop.run(kWarmRollouts + static_cast<uint32_t>(iterations.size())));
      spent += iterations.back().seconds();
      diff = std::max(diff, iterations.back().logprob_diff);
    } while (iterations.size() < 9 && spent < kEnough);
  }
  std::vector<double> ahead_s;
  {
    StreamOptions options = recipes::stream_options(bench.options.base);
    options.goes_first = true;
    Stream sampling(options);
    kernels::leave_multiprocessors(bench.options.sampling_multiprocessors, bench.stream);
    ahead_s = Loop(bench, sampling).run_ahead(std::ssize(iterations), diff);
    kernels::leave_multiprocessors(0, bench.stream);
  }
  std::vector<double> in_turn_s;
  for (const Iteration& iteration : iterations) in_turn_s.push_back(iteration.seconds());
  std::ranges::sort(iterations, {}, &Iteration::seconds);
  const Iteration& it = iterations[iterations.size() / 2];
  const auto samples = static_cast<double>(bench.work.grpo_prompts * bench.work.grpo_samples);
  const double mean = static_cast<double>(it.new_tokens) / samples;
  bench.report.results["grpo_step"] = {{"prompts", bench.work.grpo_prompts},
                                       {"samples_per_prompt", bench.work.grpo_samples},
                                       {"mean_new_tokens", mean},
                                       {"lengths", "geometric: stop tokens drawn at random, at most 4 x the mean"},
                                       {"new_tokens", it.new_tokens},
                                       {"trained_tokens", it.trained_tokens},
                                       {"rollout_s", it.rollout_s},
                                       {"train_s", it.train_s},
                                       {"logprob_diff_max", diff}};
  bench.report.result(
      "grpo_step_s", it.seconds(),
      fmt::format(
          "s        {:.2f} rollout ({:.0f} tok/s), {:.2f} training ({:.0f} tok/s); {} x {} samples of {:.0f} new "
          "tokens; max |logprob diff| {:g}",
          it.rollout_s, static_cast<double>(it.new_tokens) / it.rollout_s, it.train_s,
          static_cast<double>(it.trained_tokens) / it.train_s, bench.work.grpo_prompts, bench.work.grpo_samples, mean,
          diff));
  report_ahead(bench, in_turn_s, ahead_s);
}

}  // namespace lockstep::commands
