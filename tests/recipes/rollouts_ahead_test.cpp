// Rollouts that are sampled before earlier ones are trained on: the rule alone decides what is trained.
#include "recipes/rollouts_ahead.h"

#include <atomic>
#include <chrono>
#include <ostream>
#include <streambuf>
#include <thread>
#include <utility>

#include "core/memory.h"
#include "core/stopwatch.h"
#include "recipes/rollouts_together.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

TEST(StalenessRule, IsAFunctionOfTheRollout) {
  const StalenessRule in_turn;
  EXPECT_TRUE(in_turn.is_synchronous());
  EXPECT_EQ(in_turn.most_ahead(), 0);
  const StalenessRule two{.max_staleness = 2};
  const std::vector<int64_t> behind_two = {0, 0, 0, 1, 2, 3};
  for (int64_t r = 0; r < 6; ++r) EXPECT_EQ(two.iterations_behind(r), behind_two[static_cast<size_t>(r)]);
  EXPECT_EQ(two.most_ahead(), 2);
  const StalenessRule every_third{.max_staleness = 1, .update_interval = 3};
  const std::vector<int64_t> behind_third = {0, 0, 0, 0, 3, 3, 3, 6};
  for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(every_third.iterations_behind(r), behind_third[static_cast<size_t>(r)]);
  EXPECT_EQ(every_third.most_ahead(), 3);
}

SampledRollout rows(const RolloutsAhead::Job& job, int64_t count) {
  SampledRollout sampled;
  sampled.gates.prompts_used = count;
  sampled.rows_end = job.rows_begin + count;
  return sampled;
}

TEST(RolloutsAhead, OneAfterTheOtherInTheirOrder) {
  std::vector<std::pair<int64_t, int64_t>> seen;  // rollout, first row
  RolloutsAhead ahead(5, 100, [&](const RolloutsAhead::Job& job, const auto&) {
    seen.emplace_back(job.rollout, job.rows_begin);
    return rows(job, job.rollout);  // another number of rows each
  });
  for (int i = 0; i < 3; ++i) ahead.begin({});
  EXPECT_EQ(ahead.next(), 8);
  for (const int64_t end : {105, 111, 118}) EXPECT_EQ(ahead.take().rows_end, end);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{5, 100}, {6, 105}, {7, 111}}));
}

TEST(RolloutsAhead, WhatIsBeingSampledIsStoppedAtTheEnd) {
  std::atomic<bool> stopped = false, begun = false;
  {
    RolloutsAhead ahead(0, 0, [&](const RolloutsAhead::Job& job, const std::function<bool()>& stopping) {
      begun = true;
      while (!stopping()) std::this_thread::yield();
      stopped = true;
      return rows(job, 1);
    });
    ahead.begin({});
    while (!begun) std::this_thread::yield();
  }
  EXPECT_TRUE(stopped);
}

TEST(RolloutsAhead, WhatSamplingThrewIsThrownAfterWhatItSampled) {
  RolloutsAhead ahead(0, 0, [](const RolloutsAhead::Job& job, const auto&) -> SampledRollout {
    if (job.rollout == 1) throw DataError({.what = "a bad rollout"});
    return rows(job, 1);
  });
  for (int i = 0; i < 3; ++i) ahead.begin({});
  ahead.wait_until_idle();
  EXPECT_EQ(ahead.take().rows_end, 1);
  EXPECT_THROW(ahead.take(), DataError);
  EXPECT_THROW(ahead.take(), DataError);
}

TEST(RolloutsAhead, TheOneWhoWaitsMayGiveUp) {
  std::atomic<bool> go = false;
  RolloutsAhead ahead(0, 0, [&](const RolloutsAhead::Job& job, const std::function<bool()>& stopping) {
    while (!go && !stopping()) std::this_thread::yield();
    return rows(job, 1);
  });
  ahead.begin({});
  EXPECT_THROW(ahead.take([] { throw Cancelled({.what = "interrupted"}); }), Cancelled);
  go = true;
  EXPECT_EQ(ahead.take().rows_end, 1);
}

// Rollouts of one run: sampled together, or, where more prompts are sampled than trained on, on a thread beside
// training.
enum class Way { together, beside };

class Asynchronous : public Training, public ::testing::WithParamInterface<Way> {
 protected:
  RlOptions stale(const std::string& save, int64_t staleness, int64_t interval = 1) {
    RlOptions options = rl(save);
    options.num_rollout = 6;
    options.staleness = {.max_staleness = staleness, .update_interval = interval};
    options.checks.equal_logprobs = true;  // every log-prob is that of the version that sampled it
    if (GetParam() == Way::beside) options.over_sampling = options.rollout_batch_size + 1;
    EXPECT_EQ(sampled_together(options), GetParam() == Way::together);
    return options;
  }
  std::vector<int64_t> column(const std::string& save, const char* name) const {
    std::vector<int64_t> values;
    for (const Json& line : metrics(save)) values.push_back(line.at(name).get<int64_t>());
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, Asynchronous, ::testing::Values(Way::together, Way::beside),
                         [](const auto& test) { return test.param == Way::together ? "together" : "beside"; });

TEST_P(Asynchronous, RolloutsUseTheVersionOfTheRule) {
  run_rl(stale("one", 1), control_);
  EXPECT_EQ(column("one", "version"), (std::vector<int64_t>{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(column("one", "staleness"), (std::vector<int64_t>{0, 1, 1, 1, 1, 1}));
  run_rl(stale("third", 1, 3), control_);
  EXPECT_EQ(column("third", "version"), (std::vector<int64_t>{0, 0, 0, 0, 3, 3}));
  for (const Json& line : metrics("third")) EXPECT_EQ(line.at("logprob_diff_max"), 0.0);
}

TEST_P(Asynchronous, DelaysChangeNothing) {
  run_rl(stale("whole", 2), control_);
  // Training is slow now at one rollout, sampling at another: whoever asks for an interrupt waits.
  int asked = 0;
  control_.interrupted = [&] {
    if (++asked % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(asked % 5 * 20));
    return false;
  };
  RlOptions delayed = stale("delayed", 2);
  delayed.training.max_tokens = 64;  // more micro-batches, so more delays
  run_rl(delayed, control_);
  EXPECT_EQ(adapter_bytes("delayed", 6), adapter_bytes("whole", 6));
  EXPECT_EQ(results("delayed"), results("whole"));
}

TEST_P(Asynchronous, ResumedIsUninterrupted) {
  for (const StalenessRule rule : {StalenessRule{1, 1}, StalenessRule{2, 1}, StalenessRule{1, 2}}) {
    const std::string name = std::to_string(rule.max_staleness) + "-" + std::to_string(rule.update_interval);
    run_rl(stale("whole" + name, rule.max_staleness, rule.update_interval), control_);
    for (const int64_t first : {1, 3, 4}) {
      const std::string part = "part" + name + "-" + std::to_string(first);
      RlOptions options = stale(part, rule.max_staleness, rule.update_interval);
      options.num_rollout = first;
      run_rl(options, control_);
      options.num_rollout = 6;
      options.save.load = options.save.save;
      run_rl(options, control_);
      EXPECT_EQ(adapter_bytes(part, 6), adapter_bytes("whole" + name, 6)) << part;
      EXPECT_EQ(results(part), results("whole" + name)) << part;
    }
  }
}

TEST_P(Asynchronous, InterruptedAnywhereItResumesBitForBit) {
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(stale("whole", 1), control_);
  ASSERT_GT(questions, 5);
  for (int at = 1; at < questions; at += questions / 5) {
    const std::string name = "part" + std::to_string(at);
    RlOptions part = stale(name, 1);
    int asked = 0;
    control_.interrupted = [&] { return ++asked > at; };
    // How often it asks while it waits for samples depends on time.
    try {
      run_rl(part, control_);
    } catch (const Cancelled&) {
    }
    control_.interrupted = [] { return false; };
    part.save.load = part.save.save;
    run_rl(part, control_);
    EXPECT_EQ(adapter_bytes(name, 6), adapter_bytes("whole", 6)) << at;
  }
}

// A rollout is not timed by what is done while it is in flight, so that the parts of an iteration are its whole.
TEST_P(Asynchronous, PartsOfAnIterationAreCountedOnce) {
  const Stopwatch clock;
  run_rl(stale("run", 2), control_);
  double parts = 0;
  for (const Json& line : metrics("run"))
    for (const char* part : {"rollout_ms", "reward_ms", "train_ms"}) parts += line.at(part).get<double>();
  if (GetParam() == Way::together) {
    EXPECT_LT(parts, clock.ms());
  }
}

TEST_P(Asynchronous, AResumedRunKeepsItsRule) {
  RlOptions options = stale("run", 1);
  options.num_rollout = 2;
  run_rl(options, control_);
  options.num_rollout = 4;
  options.staleness.max_staleness = 2;
  options.save.load = options.save.save;
  EXPECT_THROW(run_rl(options, control_), ConfigError);
}

TEST_P(Asynchronous, EvaluationsChangeNothing) {
  RlOptions options = stale("evaluated", 1);
  options.num_rollout = 4;
  options.eval_sets = {{.name = "held-out", .path = kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 2;
  options.eval_sampling.max_tokens = 8;
  options.eval_sampling.temperature = 0;
  run_rl(options, control_);
  RlOptions alone = stale("alone", 1);
  alone.num_rollout = 4;
  run_rl(alone, control_);
  EXPECT_EQ(adapter_bytes("evaluated", 4), adapter_bytes("alone", 4));
}

// Says with each line of a run how much memory it holds.
class MemoryAtLines : public std::streambuf {
 public:
  std::vector<std::pair<std::string, int64_t>> lines;  // and bytes

 private:
  int_type overflow(int_type c) override {
    if (c == '\n')
      lines.emplace_back(std::exchange(line_, {}), live_bytes());
    else
      line_ += static_cast<char>(c);
    return c;
  }
  std::string line_;
};

// Else they would be computed again.
TEST_P(Asynchronous, EvaluationsKeepTheKeysOfRolloutsInFlight) {
  RlOptions options = stale("run", 1);
  options.num_rollout = 3;
  options.eval_sets = {{.name = "held-out", .path = kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 1;
  options.eval_sampling.max_tokens = 8;
  MemoryAtLines memory;
  std::ostream info(&memory);
  control_.info = &info;
  run_rl(options, control_);
  int evaluations = 0;
  for (size_t i = 1; i < memory.lines.size(); ++i) {
    const auto& [line, bytes] = memory.lines[i];
    if (!line.starts_with("eval held-out") || !memory.lines[i - 1].first.starts_with("rollout ")) continue;
    EXPECT_GE(bytes, memory.lines[i - 1].second) << line;
    ++evaluations;
  }
  EXPECT_EQ(evaluations, 3);
}

}  // namespace
}  // namespace lockstep::recipes
