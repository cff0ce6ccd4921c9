// Resumed is uninterrupted, an interrupt loses nothing, and a run that fails leaves the one before alone.
#include "recipes/run_settings.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using Resume = Training;

TEST_F(Resume, ResumedSftEqualsUninterrupted) {
  resumed_sft_equals_uninterrupted();
}

TEST_F(Resume, ResumedGrpoEqualsUninterrupted) {
  resumed_grpo_equals_uninterrupted();
}

TEST_F(Resume, GrpoInterruptedAnywhereResumesBitForBit) {
  interrupted_grpo_resumes_bit_for_bit({.questions = 30, .first = 4, .step = 7});
}

TEST_F(Resume, InterruptedAfterLoadingFromElsewhereSavesWhereItSays) {
  RlOptions first = rl("first");
  first.num_rollout = 1;
  run_rl(first, control_);
  RlOptions second = rl("second");
  second.save.load = first.save.save;
  control_.interrupted = [] { return true; };
  EXPECT_THROW(run_rl(second, control_), Cancelled);
  control_.interrupted = [] { return false; };
  EXPECT_EQ(checkpoint::latest_iteration(second.save.save), 1);
  second.save.load = second.save.save + "/";  // another spelling of --save
  run_rl(second, control_);
  run_rl(rl("whole"), control_);
  EXPECT_EQ(adapter_bytes("second", 4), adapter_bytes("whole", 4));
}

TEST_F(Resume, ARunLoadedFromElsewhereDoesNotContinueTheMetricsItFinds) {
  RlOptions options = rl("first");
  options.num_rollout = 1;
  run_rl(options, control_);
  RlOptions second = rl("second");
  fs::write_file_atomic(dir_.path() / "second" / "metrics.jsonl", "{\"step\":1,\"another\":true}\n");
  second.num_rollout = 2;
  second.save.load = options.save.save;
  run_rl(second, control_);
  ASSERT_EQ(metrics("second").size(), 1u);
  EXPECT_EQ(metrics("second")[0]["step"], 2);
  EXPECT_TRUE(std::filesystem::exists(dir_.path() / "second" / "metrics.previous.jsonl"));
}

TEST_F(Resume, ACompleteRunLoadedFromElsewhereIsSavedToo) {
  RlOptions options = rl("first");
  options.num_rollout = 1;
  run_rl(options, control_);
  options.save = {.save = (dir_.path() / "second").string(), .load = options.save.save};
  run_rl(options, control_);
  EXPECT_EQ(adapter_bytes("first", 1), adapter_bytes("second", 1));
}

TEST_F(Resume, ResumingWithOtherDataOrSeedsIsAnError) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  run_rl(options, control_);
  options.save.load = options.save.save;
  options.num_rollout = 2;
  const auto refused = [&](const std::function<void(RlOptions&)>& change, const std::string& flag) {
    RlOptions other = options;
    change(other);
    try {
      run_rl(other, control_);
      ADD_FAILURE() << flag << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << error.what();
    }
  };
  refused([](RlOptions& o) { o.rollout_batch_size = 2, o.n_samples = 8; }, "--rollout-batch-size");
  refused([](RlOptions& o) { o.n_samples = 8, o.training.global_batch_size = 32; }, "--n-samples-per-prompt");
  refused([](RlOptions& o) { o.training.global_batch_size = 16; }, "--global-batch-size");
  refused([](RlOptions& o) { o.sampling.seed = 7; }, "--rollout-seed");
  refused([](RlOptions& o) { o.training.seed = 7; }, "--seed");
  refused([](RlOptions& o) { o.shuffle = false; }, "--rollout-shuffle");
  refused([](RlOptions& o) { o.prompt_data += "@[0:100]"; }, "--prompt-data");
  // As many prompts, and one other label.
  std::string rows = fs::read_file(options.prompt_data);
  const size_t last = rows.find_last_of("0123456789");
  rows[last] = rows[last] == '1' ? '2' : '1';
  const std::string changed = dir_.write("changed.jsonl", rows).string();
  refused([&](RlOptions& o) { o.prompt_data = changed; }, "tokens and labels of --prompt-data");
  refused([](RlOptions& o) { o.adapter.config.use_rslora = true; }, "LoraConfig::use_rslora");
  refused([](RlOptions& o) { o.adapter.config.alpha = 9; }, "LoraConfig::alpha");
}

TEST_F(Resume, AFailedRunLeavesTheMetricsOfTheOneBefore) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  run_rl(options, control_);
  const std::string before = fs::read_file(dir_.path() / "run" / "metrics.jsonl");
  options.eval_sets = {{"bad", (dir_.path() / "nowhere.jsonl").string()}};
  options.eval_interval = 1;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(run_rl(options, control_), DataError);
  EXPECT_EQ(fs::read_file(dir_.path() / "run" / "metrics.jsonl"), before);
}

TEST_F(Resume, AnEvaluationThatWasInterruptedIsMadeUpFor) {
  RlOptions options = rl("eval");
  options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 2;
  options.eval_before_train = false;
  options.eval_sampling.max_tokens = 12;
  options.num_rollout = 2;
  control_.interrupted = [&] { return info_.str().find("rollout 2/2: reward") != std::string::npos; };
  EXPECT_THROW(run_rl(options, control_), Cancelled);
  control_.interrupted = [] { return false; };
  options.save.load = options.save.save;
  for (int i = 0; i < 2; ++i) run_rl(options, control_);
  const auto lines = metrics("eval");
  ASSERT_EQ(lines.size(), 3u);  // two rollouts and one evaluation, made once
  EXPECT_EQ(lines[2]["eval"], "held_out");
}

TEST_F(Resume, InterruptBeforeTheFirstIterationSavesNothingAndSaysSo) {
  control_.interrupted = [] { return true; };
  try {
    run_rl(rl("none"), control_);
    FAIL() << "not interrupted";
  } catch (const Cancelled& stopped) {
    EXPECT_NE(std::string(stopped.what()).find("before the first iteration"), std::string::npos);
  }
  EXPECT_FALSE(checkpoint::latest_iteration(rl("none").save.save).has_value());
}

TEST_F(Resume, LoadWithoutACheckpointIsAnErrorUnlessItIsSave) {
  SftOptions options = sft("save");
  options.save.load = (dir_.path() / "elsewhere").string();
  EXPECT_THROW(run_sft(options, control_), ConfigError);
  options.save.load = options.save.save;
  options.num_epoch = 1;
  run_sft(options, control_);
  EXPECT_NE(info_.str().find("starting fresh"), std::string::npos);
}

TEST_F(Resume, ResumingWithAnotherAdapterShapeIsAnError) {
  SftOptions options = sft("save");
  options.num_epoch = 1;
  run_sft(options, control_);
  options.save.load = options.save.save;
  options.adapter.config.rank = 8;
  EXPECT_THROW(run_sft(options, control_), ConfigError);
  options.adapter.config.rank = 4;
  options.adapter.config.target_modules = {"q_proj"};
  EXPECT_THROW(run_sft(options, control_), ConfigError);
}

TEST(RunSettings, AFloatIsShownWithItsOwnDigits) {
  const auto shown = [](const OrderedJson& stored, const OrderedJson& wanted) {
    const auto found = differences(Json{{"x", stored}}, OrderedJson{{"x", wanted}});
    return found.size() == 1 ? found[0].stored + " " + found[0].wanted : std::to_string(found.size());
  };
  EXPECT_EQ(shown(static_cast<double>(0.3f), static_cast<double>(0.2f)), "0.3 0.2");
  EXPECT_EQ(shown(1e-6, 2e-6), "1e-06 2e-06");
  EXPECT_EQ(shown("clip", "cispo"), "\"clip\" \"cispo\"");
  EXPECT_EQ(shown(static_cast<double>(0.3f), 0.3), "0.30000001192092896 0.3") << "two values never look the same";
}

}  // namespace
}  // namespace lockstep::recipes
