// lockstep bench: one GRPO iteration, rollout and training step. Samples end at random: every new_tokens-th token of
// the vocabulary is a stop token, which a model of random weights draws with a chance of about one in new_tokens, so
// lengths are geometric with that mean, cut off at four times it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "commands/bench.h"
#include "recipes/rollouts_together.h"
#include "recipes/run_log.h"
#include "rl/train.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

namespace lockstep::commands {

namespace {

constexpr int64_t kWarmRollouts = 2;

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

recipes::PromptSet prompt_set(const Bench& bench) {
  recipes::PromptSet set{.prompts = prompts_around(bench), .rows = {}, .bad_rows = {}};
  set.rows.assign(set.prompts.size(), std::make_shared<const rl::RewardRow>());
  return set;
}

// Each rollout reads all prompts.
recipes::RlOptions rl_options(const Bench& bench, int64_t max_staleness) {
  recipes::RlOptions options;
  options.rollout_batch_size = bench.work.grpo_prompts;
  options.n_samples = bench.work.grpo_samples;
  options.staleness.max_staleness = max_staleness;
  options.sampling.max_tokens = 4 * bench.work.new_tokens;
  for (int64_t id = 0; id < bench.base.config.vocab_size; id += bench.work.new_tokens)
    options.sampling.stop_token_ids.push_back(static_cast<int32_t>(id));
  return options;
}

// Their spread is what a group's advantages need.
class RandomReward : public rl::Reward {
 public:
  Ticket submit(std::vector<rl::RewardSample> samples) override {
    Graded graded{.ticket = next_++};
    for (const rl::RewardSample& sample : samples) {
      const auto group = static_cast<uint32_t>(sample.group), index = static_cast<uint32_t>(sample.index);
      graded.scores.push_back(rl::Score::known(uniform01(philox(11, {sample.rollout, group, index, 0})[0])));
    }
    graded_.push_back(std::move(graded));
    return graded_.back().ticket;
  }
  std::vector<Graded> poll(Deadline /*deadline*/) override { return std::exchange(graded_, {}); }
  void cancel(Ticket ticket) override {
    std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
  }

 private:
  Ticket next_ = 0;
  std::vector<Graded> graded_;
};

class Loop {
 public:
  Loop(Bench& bench, int64_t max_staleness)
      : bench_(bench),
        options_(rl_options(bench, max_staleness)),
        plan_(bench.plan(recipes::EnginePlan{})),
        trainer_(bench.base.model, bench.adapter.layout, bench.adapter.weights,
                 {.max_tokens = plan_.max_tokens, .recompute = plan_.recompute}, bench.stream),
        engine_(bench.base.model,
                {.kv_bytes = plan_.engine_kv_bytes(), .max_sequences = recipes::max_sequences(options_)}, bench.stream),
        prompts_(prompt_set(bench)) {
    store_.add(sink_);
    store_.set_keep(lora::kActor, options_.staleness.versions());
    store_.publish(lora::kActor, trainer_.adapter());
  }

  Iteration run(int64_t rollout) {
    const Stopwatch rollout_watch;
    const rl::Rollout sampled = sampling_
                                    .sample({.rollout = rollout,
                                             .rows_begin = rollout * options_.rollout_batch_size,
                                             .version = store_.pin(lora::kActor)},
                                            {})
                                    .rollout;
    engine_.release_memory();
    Iteration it{.rollout_s = rollout_watch.ms() / 1000, .trained_tokens = sampled.report.tokens};
    for (const rl::Trajectory& trajectory : sampled.trajectories) it.new_tokens += trajectory.response_len();

    const Stopwatch train_watch;
    const rl::TrainReport trained = rl::rl_train(parts_, rl::grpo(), sampled, plan_of(sampled, plan_.is_bounded()));
    bench_.stream.synchronize();
    it.train_s = train_watch.ms() / 1000;
    it.logprob_diff = *trained.logprob_diff_max;  // there is no dropout
    return it;
  }

  // Seconds of `count` iterations after a warm-up, as a run with --max-staleness 1 has them: a rollout's version is the
  // one before the newest, and the next rollout is sampled with it. `diff`: the largest, of a log-prob.
  std::vector<double> run_ahead(int64_t count, double& diff) {
    recipes::RolloutsTogether together(0, 0, sampling_);
    std::vector<double> seconds;
    for (int64_t i = 0; i < kWarmRollouts + count; ++i) {
      const Stopwatch clock;
      while (together.next() <= i + options_.staleness.most_ahead()) together.begin(store_.pin(lora::kActor));
      const recipes::SampledRollout sampled = together.take({});
      rl::TrainPlan plan = plan_of(sampled.rollout, false);
      plan.version_of = [&sampled](int64_t) { return sampled.version; };
      plan.measure_logprobs = i < kWarmRollouts;  // costs a forward
      const rl::TrainReport trained = rl::rl_train(parts_, rl::grpo(), sampled.rollout, plan);
      bench_.stream.synchronize();
      if (trained.logprob_diff_max) diff = std::max(diff, *trained.logprob_diff_max);
      if (i >= kWarmRollouts) seconds.push_back(clock.ms() / 1000);
    }
    return seconds;
  }

 private:
  static rl::TrainPlan plan_of(const rl::Rollout& sampled, bool release_memory) {
    return {.batch_size = static_cast<int64_t>(sampled.trajectories.size()),
            .schedule = {.lr = 1e-5},
            .release_memory = release_memory};
  }

  Bench& bench_;
  const recipes::RlOptions options_;
  const recipes::MemoryPlan plan_;
  train::Trainer trainer_;
  rollout::Engine engine_;
  const recipes::PromptSet prompts_;
  versions::MemorySink sink_{engine_.versions()};
  versions::Store store_;
  RandomReward reward_;
  rl::RlParts parts_{engine_, trainer_, reward_, store_};
  recipes::RolloutSampling sampling_{options_, prompts_, {}, parts_};
};

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of two rollouts in a row, halved: those that are sampled together take turns, one long and one short.
std::vector<double> pairs_of(std::span<const double> seconds) {
  std::vector<double> pairs;
  for (size_t i = 0; i + 1 < seconds.size(); i += 2) pairs.push_back((seconds[i] + seconds[i + 1]) / 2);
  return pairs;
}

// Seconds of the same rollouts, in order.
void report_ahead(Bench& bench, const std::vector<double>& in_turn_s, const std::vector<double>& ahead_s) {
  const double means = mean_of(ahead_s) / mean_of(in_turn_s),
               pairs = median(pairs_of(ahead_s)) / median(pairs_of(in_turn_s));
  bench.report.results["grpo_step_in_turn_each_s"] = in_turn_s;
  bench.report.results["grpo_step_ahead_each_s"] = ahead_s;
  bench.report.results["grpo_step_ahead_over_in_turn"] = {
      {"means", means}, {"medians_of_pairs", pairs}, {"pairs", "two rollouts in a row, their time halved"}};
  bench.report.result("grpo_step_ahead_s", mean_of(ahead_s),
                      fmt::format("s        mean of the same {} rollouts with --max-staleness 1, two sampled together: "
                                  "{:.3f} of the mean in turn ({:.2f} s), {:.3f} by medians of pairs",
                                  ahead_s.size(), means, mean_of(in_turn_s), pairs));
}

}  // namespace

void bench_grpo(Bench& bench) {
  constexpr double kEnough = 30;  // seconds
  std::vector<Iteration> iterations;
  double spent = 0, diff = 0;
  {
    Loop loop(bench, 0);
    // Warm: records the graphs of a batch that shrinks.
    for (int64_t rollout = 0; rollout < kWarmRollouts; ++rollout) loop.run(rollout);
    do {
      iterations.push_back(loop.run(kWarmRollouts + std::ssize(iterations)));
      spent += iterations.back().seconds();
      diff = std::max(diff, iterations.back().logprob_diff);
    } while (iterations.size() % 2 != 0 || (iterations.size() < 10 && spent < kEnough));
  }
  const std::vector<double> ahead_s = Loop(bench, 1).run_ahead(std::ssize(iterations), diff);
  const auto steps = static_cast<double>(iterations.size());
  std::vector<double> in_turn_s;
  Iteration all;
  for (const Iteration& it : iterations) {
    in_turn_s.push_back(it.seconds());
    all.rollout_s += it.rollout_s, all.train_s += it.train_s;
    all.new_tokens += it.new_tokens, all.trained_tokens += it.trained_tokens;
  }
  const auto samples = steps * static_cast<double>(bench.work.grpo_prompts * bench.work.grpo_samples);
  const double mean = static_cast<double>(all.new_tokens) / samples;
  bench.report.results["grpo_step"] = {{"prompts", bench.work.grpo_prompts},
                                       {"samples_per_prompt", bench.work.grpo_samples},
                                       {"mean_new_tokens", mean},
                                       {"lengths", "geometric: stop tokens drawn at random, at most 4 x the mean"},
                                       {"steps", iterations.size()},
                                       {"new_tokens", static_cast<double>(all.new_tokens) / steps},
                                       {"trained_tokens", static_cast<double>(all.trained_tokens) / steps},
                                       {"rollout_s", all.rollout_s / steps},
                                       {"train_s", all.train_s / steps},
                                       {"logprob_diff_max", diff}};
  bench.report.result(
      "grpo_step_s", all.seconds() / steps,
      fmt::format("s        mean of {}: {:.2f} rollout ({:.0f} tok/s), {:.2f} training ({:.0f} tok/s); {} x {} samples "
                  "of {:.0f} new tokens; max |logprob diff| {:g}",
                  iterations.size(), all.rollout_s / steps, static_cast<double>(all.new_tokens) / all.rollout_s,
                  all.train_s / steps, static_cast<double>(all.trained_tokens) / all.train_s, bench.work.grpo_prompts,
                  bench.work.grpo_samples, mean, diff));
  report_ahead(bench, in_turn_s, ahead_s);
}

}  // namespace lockstep::commands
