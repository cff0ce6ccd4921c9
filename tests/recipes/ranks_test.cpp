// A run over several ranks is the run of one: the same adapter, the same metrics, whatever the number of ranks; and
// ranks end together. Ranks are threads here; tests/processes has the same as processes.
#include <atomic>

#include "parallel/agree.h"
#include "recipes/ranks_fixture.h"

namespace lockstep::recipes {
namespace {

class Ranks : public RanksOfThreads {
 protected:
  // A program that says how often it was asked so far: only if it is asked once can all ranks have the same rewards.
  static void grade_by_asking_when(RlOptions& options, const std::string& seen) {
    options.reward.choices = {{.kind = rl::RewardKind::command}};
    options.reward.command =
        "while read -r line; do echo x >> " + seen + "; n=$(wc -l < " + seen +
        "); id=${line#*\\\"id\\\":}; id=${id%%,*}; echo \"{\\\"id\\\":$id,\\\"reward\\\":$n}\"; done";
    options.reward.workers = 1;
  }
  static int64_t lines_of(const std::string& file) {
    const std::string text = fs::read_file(file);
    return std::count(text.begin(), text.end(), '\n');
  }
};

TEST_F(Ranks, SupervisedTrainingHasTheSameBitsOnAnyNumber) {
  const auto options = [&](const std::string& save) {
    SftOptions o = sft(save);  // batches of 4 and 2: most ranks of 8 have nothing to do in a step
    o.adapter.config.dropout = 0.1;
    o.training.per_token_loss = true;
    o.eval_sets = {{"held_out", o.prompt_data}};
    o.eval_interval = 2;
    o.save_best = true;
    return o;
  };
  run_sft(options("alone"), control_);
  for (const int size : {1, 2, 4, 8}) {
    const std::string save = fmt::format("ranks{}", size);
    run_well_on(size, options(save), run_sft);
    expect_same(save, "alone", 6);
  }
}

TEST_F(Ranks, PreferenceTrainingHasTheSameBitsOnAnyNumber) {
  run_sft(dpo("alone"), control_);
  for (const int size : {2, 4, 8}) {
    const std::string save = fmt::format("ranks{}", size);
    run_well_on(size, dpo(save), run_sft);
    expect_same(save, "alone", checkpoint::latest_iteration(dir_.path() / "alone").value());
  }
}

TEST_F(Ranks, ReinforcementLearningHasTheSameBitsOnAnyNumber) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);  // two optimizer steps a rollout
    o.adapter.config.dropout = 0.1;
    o.use_kl_loss = true;
    o.loss.kl_coef = 0.1f;
    o.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:11]"}};
    o.eval_input_key = "prompt";
    o.eval_label_key = "label";
    o.eval_sampling = o.sampling;
    o.eval_interval = 2;
    o.save_best = true;
    o.num_rollout = 3;
    return o;
  };
  run_rl(options("alone"), control_);
  for (const int size : {1, 2, 4, 8}) {
    const std::string save = fmt::format("ranks{}", size);
    run_well_on(size, options(save), run_rl);
    expect_same(save, "alone", 3);  // the samples' digest is among the metrics
    EXPECT_EQ(samples(save), samples("alone")) << save;
  }
  bool has_logprobs = false;
  for (const auto& [name, bytes] : samples("alone"))
    has_logprobs |= plain(bytes).find("train_logprobs") != std::string::npos;
  EXPECT_TRUE(has_logprobs);
}

TEST_F(Ranks, DesirableRowsHaveTheSameBitsOnAnyNumber) {
  const auto options = [&](const std::string& save) {
    std::string rows;
    for (int i = 0; i < 11; ++i)
      rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\", \"label\": {}}}\n", i, i, 2 * i + i % 2,
                          i % 2 == 0);
    SftOptions o = sft(save);
    o.base.hf_checkpoint = kArith;
    o.prompt_data = dir_.write("judged.jsonl", rows).string();
    o.loss = train::KtoLoss{.beta = 0.5f};
    o.eval_sets = {{"held_out", o.prompt_data}};
    o.eval_interval = 2;
    return o;
  };
  run_sft(options("alone"), control_);
  const int64_t last = checkpoint::latest_iteration(dir_.path() / "alone").value();
  for (const int size : {2, 4, 8}) {
    const std::string save = fmt::format("ranks{}", size);
    run_well_on(size, options(save), run_sft);
    expect_same(save, "alone", last);
  }
}

// A teacher's passes, a choice of rows and an entropy coefficient that follows the step's entropy are computed by
// shares.
TEST_F(Ranks, WhatIsMeasuredBeforeAStepIsDealtToo) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 2;
    o.distill = true;
    o.distillation = {.coef = 0.5, .top = 3, .tokens = rl::TokenSet::either};
    o.training.balance = train::Balance::tokens;
    o.entropy_control.on = true;
    o.entropy_control.target = 1.0;
    o.adapter.config.dropout = 0.1;
    o.checks.logprob_diff = 10.0;
    return o;
  };
  run_rl(options("alone"), control_);
  for (const int size : {2, 4}) {
    const std::string save = fmt::format("ranks{}", size);
    run_well_on(size, options(save), run_rl);
    expect_same(save, "alone", 2);
    EXPECT_EQ(samples(save), samples("alone")) << size;
  }
}

TEST_F(Ranks, BalancedLanesHaveTheSameBitsOnAnyNumberAndAreASettingOfTheRun) {
  for (const train::Balance balance : {train::Balance::tokens, train::Balance::flops}) {
    const auto options = [&](const std::string& save) {
      SftOptions o = sft(save + (balance == train::Balance::tokens ? "_tokens" : "_flops"));
      o.training.global_batch_size = 9;
      o.training.balance = balance;
      o.adapter.config.dropout = 0.1;
      return o;
    };
    run_sft(options("alone"), control_);
    const std::string alone = fs::Path(options("alone").save.save).filename().string();
    const int64_t last = checkpoint::latest_iteration(dir_.path() / alone).value();
    for (const int size : {2, 8}) {
      const SftOptions on_ranks = options(fmt::format("ranks{}", size));
      run_well_on(size, on_ranks, run_sft);
      const std::string save = fs::Path(on_ranks.save.save).filename().string();
      expect_same(save, alone, last);
      for (const Json& line : metrics(save)) EXPECT_GE(line.at("rank_imbalance").get<double>(), 1);
    }
    EXPECT_FALSE(metrics(alone)[0].contains("rank_imbalance"));
    SftOptions other = options("alone");
    other.save.load = other.save.save;
    other.training.balance = train::Balance::none;
    EXPECT_THROW(run_sft(other, control_), ConfigError);
  }
}

TEST_F(Ranks, EachSampleIsGradedOnceWhateverTheNumber) {
  RlOptions options = rl("ranks4");
  options.num_rollout = 2;
  const std::string seen = (dir_.path() / "seen").string();
  grade_by_asking_when(options, seen);
  run_well_on(4, options, run_rl);
  EXPECT_EQ(lines_of(seen), 2 * 4 * 4);
  for (const Json& line : metrics("ranks4")) {
    EXPECT_EQ(line["reward_unknown"], 0) << line;
    EXPECT_GT(line["reward"].get<double>(), 1) << line;
  }
}

TEST_F(Ranks, HeldOutSamplesOfASetWithItsOwnRewardAreGradedOnceToo) {
  RlOptions options = rl("ranks4");
  options.num_rollout = 2;
  options.eval_sets = {{.name = "held_out", .path = kArith + "/test.jsonl@[0:11]"}};
  options.eval_sets[0].reward = {{.kind = rl::RewardKind::command}};
  options.eval_sampling = options.sampling;
  options.eval_interval = 1;
  const std::string seen = (dir_.path() / "seen").string();
  const auto choices = options.reward.choices;
  grade_by_asking_when(options, seen);
  options.reward.choices = choices;  // of training: the rule
  run_well_on(4, options, run_rl);
  EXPECT_EQ(lines_of(seen), 3 * 11);  // before training, and after each rollout
}

TEST_F(Ranks, AnInterruptWhileSamplingStopsAllAndResumes) {
  run_rl(rl("alone"), control_);
  for (const int at : {2, 9, 30}) {
    const std::string save = fmt::format("part{}", at);
    RlOptions part = rl(save);
    std::atomic<int> asked{0};
    const std::vector<std::string> thrown = run_on(2, part, run_rl, [&](int rank, Control& control) {
      if (rank == 1) control.interrupted = [&] { return ++asked > at; };
    });
    for (const std::string& error : thrown) EXPECT_NE(error.find(" 130: "), std::string::npos) << error;
    part.save.load = part.save.save;
    run_well_on(2, part, run_rl);
    EXPECT_EQ(adapter_bytes(save, 4), adapter_bytes("alone", 4));
  }
}

TEST_F(Ranks, MoreLanesAllowMoreRanksAndAreASettingOfTheRun) {
  const auto options = [&](const std::string& save) {
    SftOptions o = sft(save);
    o.training.gradient_lanes = 16;
    o.training.global_batch_size = 10;
    return o;
  };
  run_sft(options("alone"), control_);
  run_well_on(16, options("ranks16"), run_sft);
  expect_same("ranks16", "alone", 2);
  SftOptions other = options("alone");
  other.save.load = other.save.save;
  other.training.gradient_lanes = 8;
  EXPECT_THROW(run_sft(other, control_), ConfigError);
}

TEST_F(Ranks, AnInterruptOfOneRankStopsAllAndRankZeroSaves) {
  run_sft(sft("alone"), control_);
  for (const int asked_rank : {0, 1}) {
    const std::string save = fmt::format("part{}", asked_rank);
    std::atomic<int> asked{0};
    SftOptions part = sft(save);
    const std::vector<std::string> thrown = run_on(2, part, run_sft, [&](int rank, Control& control) {
      if (rank == asked_rank) control.interrupted = [&] { return ++asked > 3; };
    });
    for (const std::string& error : thrown) EXPECT_EQ(error.substr(0, 14), "Cancelled 130:") << error;
    const auto reached = checkpoint::latest_iteration(part.save.save);
    ASSERT_TRUE(reached.has_value());
    EXPECT_LT(*reached, 6);
    part.save.load = part.save.save;
    run_well_on(2, part, run_sft);
    EXPECT_EQ(adapter_bytes(save, 6), adapter_bytes("alone", 6));
  }
}

TEST_F(Ranks, AnInterruptDuringEvaluationStopsAll) {
  SftOptions options = sft("part");
  options.eval_sets = {{"held_out", options.prompt_data}};
  options.eval_interval = 1;
  const std::vector<std::string> thrown = run_on(2, options, run_sft, [&](int rank, Control& control) {
    if (rank == 1) control.interrupted = [] { return true; };
  });
  for (const std::string& error : thrown) EXPECT_EQ(error.substr(0, 14), "Cancelled 130:") << error;
}

TEST_F(Ranks, RanksThatBeginDifferentlyAreRefused) {
  SftOptions options = sft("part");
  std::vector<std::unique_ptr<parallel::Group>> groups = parallel::threads(2, {.call = std::chrono::minutes(2)});
  std::vector<std::string> thrown(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      std::ostringstream said;
      Control control{.out = &said, .info = &said, .rank = rank};
      control.join = [&](const parallel::Identity&) { return std::move(groups[static_cast<size_t>(rank)]); };
      SftOptions mine = options;
      mine.optimizer.schedule.lr *= rank + 1;
      try {
        run_sft(mine, control);
      } catch (const Error& error) {
        thrown[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : thrown) {
    EXPECT_NE(error.find("the ranks of a job are not alike"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1: --lr"), std::string::npos) << error;
  }
}

TEST_F(Ranks, AnErrorOfOneRankEndsAllWithItsCode) {
  const std::vector<std::string> thrown = run_on(2, sft("part"), run_sft, [&](int rank, Control& control) {
    if (rank == 1) control.interrupted = []() -> bool { throw DataError({.what = "a row is bad"}); };
  });
  EXPECT_EQ(thrown[1].substr(0, 12), "DataError 3:") << thrown[1];
  EXPECT_NE(thrown[0].find("a row is bad"), std::string::npos) << thrown[0];
}

TEST_F(Ranks, AStepThatIsNotFiniteIsAbandonedByAll) {
  SftOptions options = sft("ranks2");
  options.optimizer.schedule.lr = 1e30;  // the second step reads what the first has made of the adapter
  options.optimizer.schedule.warmup_steps = 0;
  options.optimizer.clip_grad = 0;
  SftOptions alone = options;
  alone.save = sft("alone").save;
  run_sft(alone, control_);
  run_well_on(2, options, run_sft);
  expect_same("ranks2", "alone", 6);
  EXPECT_TRUE(results("alone").back().contains("abandoned_steps"));
}

}  // namespace
}  // namespace lockstep::recipes
