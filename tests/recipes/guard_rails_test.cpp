// What keeps a run from ruin: steps that are not finite are abandoned, and what goes wrong is said.
#include <algorithm>
#include <limits>

#include "load/adapter.h"
#include "recipes/run_checks.h"
#include "recipes/run_warnings.h"
#include "recipes/training_fixture.h"
#include "recipes/training_run.h"
#include "train/not_finite.h"
#include "train/train_step.h"

namespace lockstep::recipes {
namespace {

class GuardRails : public Training {
 protected:
  size_t count(const std::string& text) const {
    size_t found = 0;
    for (size_t at = 0; (at = info_.str().find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  }
};

// Of four samples the third has an advantage that is no number.
TEST_F(GuardRails, AStepThatIsNotFiniteChangesNothingAndTheNextIsTaken) {
  SftOptions options = sft("run");
  options.training.max_skipped_steps = 1;
  Stream stream({.threads = 2});
  const Base base = load_base(options.base, stream, control_);
  TrainingRun run(options.adapter, options.optimizer, options.training, options.save, base, stream, control_,
                  OrderedJson::object());
  run.set_schedule(4);
  std::vector<train::Datum> datums(4);
  for (train::Datum& datum : datums) {
    datum.tokens = {1, 2, 3, 4};
    datum.targets = {2, 3, 4, -1};
    datum.weights = {1, 1, 1, 0};
    datum.sampled_logprobs = datum.policy_logprobs = {-5, -5, -5, 0};
    datum.advantages = {1, 1, 1, 0};
  }
  const train::PolicyLoss loss{.clip_low = 1, .clip_high = 1000};
  const auto step = [&](float advantage) {
    datums[2].advantages.assign(4, advantage);
    return run.step(datums, loss, [](int64_t) {});
  };
  const auto weights = run.trainer().adapter().weights;
  EXPECT_FALSE(step(std::numeric_limits<float>::infinity()));
  EXPECT_EQ(run.trainer().adapter().weights, weights);
  EXPECT_EQ(run.trainer().steps(), 0);
  EXPECT_EQ(run.skipped_steps(), 1);
  EXPECT_EQ(count("abandoned, 1 of at most 1"), 1u) << info_.str();
  ASSERT_TRUE(step(1));
  EXPECT_EQ(run.trainer().steps(), 1);
  testing::expect_error<DataError>([&] { step(std::numeric_limits<float>::infinity()); },
                                   {"step 2", "by itself sample 2", "TrainingOptions::max_skipped_steps"});
  EXPECT_EQ(run.trainer().steps(), 1);
}

// One module has an A so large that the gradient of its B overflows, while its B of zeros hides it from the outputs.
TEST_F(GuardRails, TheModuleWhoseGradientIsNotFiniteIsNamed) {
  const SftOptions options = sft("run");
  Stream stream({.threads = 2});
  const Base base = load_base(options.base, stream, control_);
  const lora::AdapterVersion start = load::fresh_adapter(options.adapter.config, base, 1);
  Buffer weights = lora::host_weights(*start.weights, *start.layout, stream);
  const lora::Pair& pair = start.layout->pairs.back();
  std::fill_n(static_cast<float*>(weights.data()) + pair.a_offset, pair.in * pair.rank, 1e36f);
  const auto placed = std::make_shared<const Buffer>(lora::place_weights(std::move(weights), *start.layout, stream));
  train::Trainer trainer(base.model, start.layout, placed, {}, stream);
  std::vector<train::Datum> datums(3);
  for (train::Datum& datum : datums) {
    datum.tokens = {1, 2, 3, 4};
    datum.targets = {2, 3, 4, -1};
    datum.weights = {1, 1, 1, 0};
    datum.sampled_logprobs = datum.policy_logprobs = {-5, -5, -5, 0};
    datum.advantages.assign(4, 0);
  }
  datums[1].advantages.assign(4, 1e9f);
  const train::Loss loss = train::PolicyLoss{.clip_low = 1, .clip_high = 1000};
  const std::string name = pair.module().name;
  try {
    train::train_step(trainer, datums, loss, 1e-3, {});
    FAIL() << "the step was taken";
  } catch (const train::NotFiniteError& error) {
    EXPECT_NE(error.fault().where.find(name), std::string::npos) << error.what();
  }
  const train::NotFinite found = train::find_not_finite(trainer, datums, loss);
  EXPECT_EQ(found.sample, 1);
  EXPECT_EQ(found.module, name);
  EXPECT_EQ(trainer.steps(), 0);
}

// The first step leaves weights with which no output is finite: all later ones are abandoned.
TEST_F(GuardRails, ARunStopsAfterTooManyAndSavesWhatWasWhole) {
  SftOptions options = sft("run");
  options.optimizer.schedule = {.lr = 1e30};
  options.num_epoch = 10;
  options.save.save_interval = 100;
  options.training.max_skipped_steps = 3;
  testing::expect_error<DataError>([&] { run_sft(options, control_); },
                                   {"not finite", "by itself sample 0", "TrainingOptions::max_skipped_steps"});
  EXPECT_EQ(count("abandoned, "), 4u) << info_.str();
  ASSERT_EQ(checkpoint::latest_iteration(options.save.save), 4);
  const Json counters = read_json((dir_ / "run" / "iter_0000004" / "train_state.json").string())["counters"];
  EXPECT_EQ(counters["skipped_steps"], 3);
  EXPECT_EQ(counters["version"], 1);
  EXPECT_EQ(counters["optimizer_steps"], 1);
  EXPECT_EQ(metrics("run")[3]["abandoned_steps"], 3);
  // The count goes on in the run that is resumed.
  options.save.load = options.save.save;
  info_.str("");
  EXPECT_THROW(run_sft(options, control_), DataError);
  EXPECT_EQ(count("abandoned, "), 1u) << info_.str();
}

// A run from weights with which no output is finite ends as a failed check, after it is saved.
TEST_F(GuardRails, ARunThatTookNoStepFails) {
  SftOptions first = sft("first");
  first.optimizer.schedule = {.lr = 1e30};
  first.num_steps = 2;
  first.save.save_interval = 1;
  EXPECT_NO_THROW(run_sft(first, control_));  // one step was taken, and one abandoned
  SftOptions options = sft("run");
  options.adapter.adapter_path = (dir_ / "first" / "iter_0000001" / "lora_adapter").string();
  options.num_steps = 3;
  options.optimizer.decay_steps = 4;
  info_.str("");
  EXPECT_THROW(run_sft(options, control_), CheckError) << info_.str();
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 3);
  for (const char* line : {"skip    iteration 1, optimizer step 1", "skip    iteration 3, optimizer step 1"})
    EXPECT_EQ(count(line), 1u) << info_.str();
  // A resumed one is asked for steps of its own.
  options.num_steps = 4;
  options.save.load = options.save.save;
  testing::expect_error<CheckError>([&] { run_sft(options, control_); },
                                    {"trained nothing", "iteration 4", "1 abandoned, 0 taken"});
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 4);
}

TEST_F(GuardRails, ARolloutWhoseLaterStepsAreAbandonedIsPublishedOnce) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  options.optimizer.schedule.lr = 1e30;
  options.training.global_batch_size = 4;
  run_rl(options, control_);
  // Of four steps; one whose rewards are all equal changes nothing.
  const auto abandoned = static_cast<int64_t>(count("abandoned, "));
  EXPECT_GE(abandoned, 1) << info_.str();
  EXPECT_LE(abandoned, 3) << info_.str();
  EXPECT_EQ(count("skip    iteration 1, optimizer step "), static_cast<size_t>(abandoned)) << info_.str();
  const Json counters = read_json((dir_ / "run" / "iter_0000001" / "train_state.json").string())["counters"];
  EXPECT_EQ(counters["version"], 1);
  EXPECT_EQ(counters["optimizer_steps"], 4 - abandoned);
  EXPECT_EQ(metrics("run")[0]["abandoned_steps"], abandoned);
}

TEST_F(GuardRails, TheBestRolloutStays) {
  RlOptions options = rl("run");
  options.num_rollout = 3;
  options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 1;
  options.eval_before_train = false;
  options.eval_sampling.max_tokens = 12;
  options.save.total_limit = 1;
  options.save_best = true;
  run_rl(options, control_);
  double best = -1;
  int64_t at = 0;
  for (const Json& line : metrics("run"))
    if (line.contains("eval") && line["accuracy"].get<double>() > best)
      best = line["accuracy"].get<double>(), at = line["step"].get<int64_t>();
  EXPECT_EQ(checkpoint::best_iteration(options.save.save), at);
  std::vector<int64_t> left = at == 3 ? std::vector<int64_t>{3} : std::vector<int64_t>{at, 3};
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), left);
  EXPECT_EQ(count("best    rollout " + std::to_string(at)), 1u) << info_.str();
}

TEST(RunWarnings, AreSaidOnceWhenTheyBegin) {
  RunWarnings warnings;
  const auto add = [&](double reward, double entropy, double kl) {
    warnings = RunWarnings::from(warnings.json(), "state");  // as a run that is resumed before each rollout
    return warnings.add({.reward = reward, .entropy = entropy, .kl = kl});
  };
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(add(0.8, 2, 0.02).empty()) << i;
  const auto kl = add(0.8, 2, 0.3);
  ASSERT_EQ(kl.size(), 1u);
  EXPECT_NE(kl[0].find("KL explosion: 0.3"), std::string::npos) << kl[0];
  const auto entropy = add(0.8, 0.1, 0.02);
  ASSERT_EQ(entropy.size(), 1u);
  EXPECT_NE(entropy[0].find("entropy collapse"), std::string::npos);
  EXPECT_TRUE(add(0.8, 0.1, 0.02).empty());
  std::vector<std::string> said;
  for (int i = 0; i < 10; ++i)
    for (const std::string& text : add(0.1, 2, 0.02)) said.push_back(text);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("reward collapse"), std::string::npos);
}

TEST(RunWarnings, WhatIsNoStateIsRefused) {
  Json state = RunWarnings().json();
  state["rewards"] = "many";
  testing::expect_error<FormatError>([&] { RunWarnings::from(state, "warnings.json"); }, {"warnings.json: rewards"});
  state["rewards"] = std::vector<double>(RunWarnings::kWindow + 1);
  EXPECT_THROW(RunWarnings::from(state, "warnings.json"), FormatError);
}

}  // namespace
}  // namespace lockstep::recipes
