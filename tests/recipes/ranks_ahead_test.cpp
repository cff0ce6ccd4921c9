// Rollouts that several ranks sample ahead: the run of one rank, whatever their number and however slow one of them is.
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "recipes/random_delays.h"
#include "recipes/ranks_fixture.h"

namespace lockstep::recipes {
namespace {

class RanksAhead : public RanksOfThreads {
 protected:
  RlOptions ahead(const std::string& save, StalenessRule rule = {.max_staleness = 1}) {
    RlOptions options = rl(save);  // two optimizer steps a rollout
    options.num_rollout = 5;
    options.staleness = rule;
    options.adapter.config.dropout = 0.1;
    options.checks.equal_logprobs = true;  // every log-prob is that of the version that sampled it
    return options;
  }
  // More prompts are sampled than trained on, so that the next rollout begins when the one ahead of it is there: a
  // thread samples beside training.
  RlOptions beside(const std::string& save, StalenessRule rule = {.max_staleness = 1}) {
    RlOptions options = ahead(save, rule);
    options.over_sampling = options.rollout_batch_size + 1;
    return options;
  }
  // Before questions whether a rank was asked to stop it sleeps at random, each rank at others.
  static Change delays(unsigned seed) {
    return [seed](int rank, Control& control) {
      control.interrupted = random_delays(10 * seed + static_cast<unsigned>(rank), std::chrono::milliseconds(40));
    };
  }
};

TEST_F(RanksAhead, AnyNumberOfRanksTrainsTheSameAdapter) {
  for (const StalenessRule rule : {StalenessRule{1, 1}, StalenessRule{2, 1}, StalenessRule{1, 2}}) {
    const std::string kind = fmt::format("{}-{}-", rule.max_staleness, rule.update_interval);
    const auto options = [&](const std::string& save) {
      RlOptions o = ahead(kind + save, rule);
      o.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:11]"}};
      o.eval_input_key = "prompt";
      o.eval_label_key = "label";
      o.eval_sampling = o.sampling;
      o.eval_interval = 2;
      return o;
    };
    run_rl(options("alone"), control_);
    for (const int size : {2, 4}) {
      const std::string save = fmt::format("ranks{}", size);
      run_well_on(size, options(save), run_rl);
      expect_same(kind + save, kind + "alone", 5);
      EXPECT_EQ(samples(kind + save), samples(kind + "alone")) << size;
    }
    for (const Json& line : metrics(kind + "ranks4")) {
      if (!line.contains("eval")) {
        EXPECT_EQ(line.at("logprob_diff_max"), 0.0);
      }
    }
  }
  std::vector<int64_t> staleness;
  for (const Json& line : metrics("1-1-ranks4"))
    if (!line.contains("eval")) staleness.push_back(line.at("staleness"));
  EXPECT_EQ(staleness, (std::vector<int64_t>{0, 1, 1, 1, 1}));
}

TEST_F(RanksAhead, ASlowRankChangesNothing) {
  for (const bool in_one_batch : {true, false}) {
    const std::string prefix = in_one_batch ? "" : "beside-";
    const auto options = [&](const std::string& save) {
      return in_one_batch ? ahead(prefix + save) : beside(prefix + save);
    };
    run_rl(options("alone"), control_);
    for (const unsigned seed : {1u, 2u, 3u}) {
      const std::string save = fmt::format("ranks4-{}", seed);
      for (const std::string& error : run_on(4, options(save), run_rl, delays(seed))) EXPECT_EQ(error, "nothing");
      expect_same(prefix + save, prefix + "alone", 5);
    }
  }
}

TEST_F(RanksAhead, BesideTrainingTheyTrainTheSameAdapter) {
  run_rl(beside("alone", {2, 1}), control_);
  run_well_on(2, beside("ranks2", {2, 1}), run_rl);
  expect_same("ranks2", "alone", 5);
}

TEST_F(RanksAhead, AnInterruptOfOneRankStopsAllAndAnyNumberGoesOn) {
  run_rl(ahead("alone"), control_);
  size_t kept = 0;
  for (const int asked_rank : {0, 1})
    for (const int at : {3, 15, 40, 90}) {
      const std::string save = fmt::format("part{}-{}", asked_rank, at);
      RlOptions part = ahead(save);
      std::atomic<int> asked{0};
      const std::vector<std::string> thrown = run_on(2, part, run_rl, [&](int rank, Control& control) {
        if (rank == asked_rank) control.interrupted = [&] { return ++asked > at; };
      });
      for (const std::string& error : thrown) {
        EXPECT_TRUE(error == thrown[0] || error.find(" 130: ") != std::string::npos) << error;
      }
      if (const auto reached = checkpoint::latest_iteration(part.save.save); reached && *reached < 5) {
        const checkpoint::LoadedCheckpoint saved(part.save.save, *reached);
        kept += saved.state().parts.count(checkpoint::kPendingSamplesPart);
      }
      part.save.load = part.save.save;
      run_well_on(asked_rank == 0 ? 4 : 1, part, run_rl);
      EXPECT_EQ(adapter_bytes(save, 5), adapter_bytes("alone", 5)) << save;
    }
  EXPECT_GT(kept, 0u) << "samples that were graded before the interrupt";
}

TEST_F(RanksAhead, ResumedIsUninterruptedWithAnyNumber) {
  for (const StalenessRule rule : {StalenessRule{2, 1}, StalenessRule{1, 2}}) {
    const std::string kind = fmt::format("{}-{}-", rule.max_staleness, rule.update_interval);
    run_rl(ahead(kind + "alone", rule), control_);
    RlOptions part = ahead(kind + "part", rule);
    part.optimizer.decay_steps = 10;
    part.save.load = part.save.save;
    for (const auto& [size, rollouts] : {std::pair(4, 1), std::pair(2, 3), std::pair(4, 4), std::pair(1, 5)}) {
      part.num_rollout = rollouts;
      run_well_on(size, part, run_rl);
    }
    EXPECT_EQ(adapter_bytes(kind + "part", 5), adapter_bytes(kind + "alone", 5)) << kind;
  }
}

// Whichever thread of a rank fails, both of all ranks end, and with its code.
TEST_F(RanksAhead, AnErrorOfOneRankEndsAllWithItsCode) {
  const auto begin = std::chrono::steady_clock::now();
  for (const int at : {2, 20, 40, -2, -20}) {
    std::atomic<int> asked{0};
    const std::string save = fmt::format("part{}", at);
    const std::vector<std::string> thrown =
        run_on(2, at > 0 ? ahead(save) : beside(save), run_rl, [&](int rank, Control& control) {
          if (rank == 1)
            control.interrupted = [&]() -> bool {
              if (++asked > std::abs(at)) throw DataError({.what = "a row is bad"});
              return false;
            };
        });
    for (const std::string& error : thrown) {
      EXPECT_NE(error.find(" 3: "), std::string::npos) << at << " of " << asked << ": " << error;
      EXPECT_NE(error.find("a row is bad"), std::string::npos) << error;
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1)) << "not by the deadline of a call";
}

std::atomic<bool> rank_0_has_ended = false;

void watched_run(const RlOptions& options, const Control& control) {
  try {
    run_rl(options, control);
  } catch (...) {
    if (control.rank == 0) rank_0_has_ended = true;
    throw;
  }
}

TEST_F(RanksAhead, TheOthersHearOfAnErrorBeforeItsRankWaitsForTheThreadThatSamples) {
  std::atomic<bool> told = false, samples = false;
  run_on(2, beside("part"), watched_run, [&](int rank, Control& control) {
    if (rank == 0) return;
    control.interrupted = [&, main = std::this_thread::get_id()]() -> bool {
      if (std::this_thread::get_id() == main) {
        if (samples) throw DataError({.what = "a row is bad"});
        return false;
      }
      samples = true;
      for (int i = 0; i < 6000 && !rank_0_has_ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      told = rank_0_has_ended.load();
      return false;
    };
  });
  EXPECT_TRUE(told);
}

TEST_F(RanksAhead, ARewardThatFailsOnOneRankEndsAll) {
  RlOptions options = ahead("part");
  options.rollout_batch_size = 2;  // each failure takes longer than the one before it
  options.reward.choices = {{.kind = rl::RewardKind::command}};
  options.reward.command = "exit 3";
  options.reward.workers = 1;
  options.reward.timeout = std::chrono::milliseconds(300);
  options.on_reward_failure = rl::RewardFailure::stop;
  for (const std::string& error : run_on(2, options, run_rl)) {
    EXPECT_EQ(error.substr(0, 12), "DataError 3:") << error;
  }
}

TEST_F(RanksAhead, WhatArrivesFirstIsOfOneRank) {
  RlOptions options = rl("part");
  options.async = {.on = true, .max_staleness = 1};
  for (const std::string& error : run_on(2, options, run_rl)) {
    EXPECT_EQ(error.substr(0, 14), "ConfigError 2:") << error;
    EXPECT_NE(error.find("RlOptions::staleness"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace lockstep::recipes
