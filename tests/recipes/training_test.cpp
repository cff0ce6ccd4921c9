// The loops end to end: two runs are one, resumed is uninterrupted, an interrupt loses nothing, the base stays what it
// was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "checkpoint/train_state.h"
#include "recipes/adapter.h"
#include "recipes/commands.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

const std::string kTiny = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

class Training : public ::testing::Test {
 protected:
  Training() {
    std::string rows;
    for (int i = 0; i < 10; ++i) {
      Json tokens = Json::array(), mask = Json::array();
      for (int t = 0; t < 6 + i; ++t) {
        tokens.push_back((i * 37 + t * 11) % 304);
        mask.push_back(t >= 2 ? 1 : 0);
      }
      rows += Json{{"tokens", tokens}, {"loss_mask", mask}}.dump() + "\n";
    }
    fs::write_file_atomic(dir_.path() / "sft.jsonl", rows);
    control_.out = &out_;
    control_.info = &info_;
  }

  SftOptions sft(const std::string& save) {
    SftOptions options;
    options.base = {.hf_checkpoint = kTiny, .stream = {.threads = 2}};
    options.adapter.config = {.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
    options.optimizer.schedule.lr = 1e-2;
    options.optimizer.schedule.style = train::DecayStyle::cosine;
    options.optimizer.schedule.warmup_steps = 2;
    options.training = {.global_batch_size = 4, .max_tokens = 24};
    options.prompt_data = (dir_.path() / "sft.jsonl").string();
    options.num_epoch = 2;  // 3 + 3 steps, the third of each epoch smaller
    options.shuffle = true;
    options.save = {.save = (dir_.path() / save).string(), .save_interval = 2};
    return options;
  }

  RlOptions rl(const std::string& save) {
    RlOptions options;
    options.base = {.hf_checkpoint = kArith, .stream = {.threads = 2}};
    options.adapter.config = {.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
    options.optimizer.schedule.lr = 1e-3;
    options.training = {.global_batch_size = 8};
    options.prompt_data = kArith + "/train.jsonl";
    options.input_key = "prompt";
    options.label_key = "label";
    options.num_rollout = 4;
    options.rollout_batch_size = 4;
    options.n_samples = 4;
    options.shuffle = true;
    options.sampling.max_tokens = 12;
    options.save = {.save = (dir_.path() / save).string(), .save_interval = 1};
    return options;
  }

  std::string adapter_bytes(const std::string& save, int64_t iteration) const {
    return fs::read_file(dir_.path() / save / checkpoint::iteration_directory_name(iteration) / "lora_adapter" /
                         "adapter_model.safetensors");
  }
  std::vector<Json> metrics(const std::string& save) const {
    std::vector<Json> lines;
    std::istringstream text(fs::read_file(dir_.path() / save / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  testing::TempDirectory dir_;
  std::ostringstream out_, info_;
  Control control_;
};

TEST_F(Training, TwoSftRunsGiveTheSameBytesWhateverTheMachine) {
  run_sft(sft("a"), control_);
  SftOptions other = sft("b");
  other.base.stream.threads = 1;
  other.training.max_tokens = 1000;
  other.training.recompute = true;
  run_sft(other, control_);
  EXPECT_EQ(adapter_bytes("a", 6), adapter_bytes("b", 6));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
  const std::string iteration = checkpoint::iteration_directory_name(4);
  EXPECT_EQ(Json::parse(fs::read_file(dir_.path() / "a" / iteration / "vime_lora_metadata.json"))["version"], 4);
  EXPECT_EQ(lines[0]["tokens"].get<int64_t>() + lines[1]["tokens"].get<int64_t>() + lines[2]["tokens"].get<int64_t>(),
            95);  // every row once an epoch: sum of (6 + i) - 1
}

TEST_F(Training, ResumedSftEqualsUninterrupted) {
  run_sft(sft("whole"), control_);
  SftOptions first = sft("part");
  int asked = 0;
  control_.interrupted = [&asked] { return ++asked > 7; };
  EXPECT_THROW(run_sft(first, control_), Cancelled);
  const auto reached = checkpoint::latest_iteration(first.save.save);
  ASSERT_TRUE(reached.has_value());
  ASSERT_LT(*reached, 6);
  control_.interrupted = [] { return false; };
  first.save.load = first.save.save;
  run_sft(first, control_);
  EXPECT_EQ(adapter_bytes("whole", 6), adapter_bytes("part", 6));
  const auto a = metrics("whole"), b = metrics("part");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]["loss"], b[i]["loss"]);
    EXPECT_EQ(a[i]["grad_norm"], b[i]["grad_norm"]);
    EXPECT_EQ(a[i]["lr"], b[i]["lr"]);
  }
}

TEST_F(Training, GrpoIsExactAndReproducible) {
  run_rl(rl("a"), control_);
  RlOptions other = rl("b");
  other.base.stream.threads = 1;
  other.max_sequences = 3;
  run_rl(other, control_);
  EXPECT_EQ(adapter_bytes("a", 4), adapter_bytes("b", 4));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["logprob_diff_max"].get<double>(), 0.0);
    EXPECT_EQ(lines[i]["version"].get<size_t>(), i);
    EXPECT_TRUE(lines[i]["kl"].is_null());
    for (const char* key :
         {"reward", "entropy", "response_len", "rollout_ms", "reward_ms", "train_ms", "publish_ms", "tokens_per_s"})
      EXPECT_TRUE(lines[i][key].is_number()) << key;
  }
}

TEST_F(Training, ResumedGrpoEqualsUninterrupted) {
  run_rl(rl("whole"), control_);
  RlOptions part = rl("part");
  part.num_rollout = 2;
  run_rl(part, control_);
  part.num_rollout = 4;
  part.save.load = part.save.save;
  run_rl(part, control_);
  EXPECT_EQ(adapter_bytes("whole", 4), adapter_bytes("part", 4));
}

// Wherever an interrupt falls (sampling, the reference's log-probs, a step, between rollouts), the resumed run is the
// whole one.
TEST_F(Training, GrpoInterruptedAnywhereResumesBitForBit) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 3;
    o.use_kl_loss = true;
    o.loss.kl_coef = 0.1f;
    o.training.max_tokens = 64;  // many micro-batches
    return o;
  };
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(options("whole"), control_);
  ASSERT_GT(questions, 30);
  for (int at = questions / 4; at < questions; at += questions / 7) {
    const std::string name = "part" + std::to_string(at);
    RlOptions part = options(name);
    int asked = 0;
    control_.interrupted = [&] { return ++asked > at; };
    EXPECT_THROW(run_rl(part, control_), Cancelled) << at;
    control_.interrupted = [] { return false; };
    part.save.load = part.save.save;
    run_rl(part, control_);
    EXPECT_EQ(adapter_bytes(name, 3), adapter_bytes("whole", 3)) << at;
    EXPECT_EQ(metrics(name).size(), 3u) << at;
  }
}

TEST_F(Training, InterruptedAfterLoadingFromElsewhereSavesWhereItSays) {
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

TEST_F(Training, ACompleteRunLoadedFromElsewhereIsSavedToo) {
  RlOptions options = rl("first");
  options.num_rollout = 1;
  run_rl(options, control_);
  options.save = {.save = (dir_.path() / "second").string(), .load = options.save.save};
  run_rl(options, control_);
  EXPECT_EQ(adapter_bytes("first", 1), adapter_bytes("second", 1));
}

TEST_F(Training, ResumingWithOtherDataOrSeedsIsAnError) {
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
  refused([](RlOptions& o) { o.adapter.config.use_rslora = true; }, "--use-rslora");
  refused([](RlOptions& o) { o.adapter.config.alpha = 9; }, "--lora-alpha");
}

TEST_F(Training, FlagsThatContradictTheAdapterToStartFromAreAnError) {
  SftOptions first = sft("first");
  first.num_epoch = 1;
  run_sft(first, control_);
  SftOptions second = sft("second");
  second.adapter.adapter_path = first.save.save + "/iter_0000003/lora_adapter";
  second.adapter.config.rank = 8;
  EXPECT_THROW(run_sft(second, control_), ConfigError);
  second.adapter.config = {};
  run_sft(second, control_);
}

TEST_F(Training, AFailedRunLeavesTheMetricsOfTheOneBefore) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  run_rl(options, control_);
  const std::string before = fs::read_file(dir_.path() / "run" / "metrics.jsonl");
  options.eval_sets = {{"bad", (dir_.path() / "nowhere.jsonl").string()}};
  options.eval_interval = 1;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(run_rl(options, control_), DataError);
  EXPECT_EQ(fs::read_file(dir_.path() / "run" / "metrics.jsonl"), before);
}

TEST_F(Training, PromptsThatDoNotFillARolloutAreAnError) {
  RlOptions options = rl("run");
  options.prompt_data += "@[0:3]";
  options.num_rollout.reset();
  options.num_epoch = 1;
  EXPECT_THROW(run_rl(options, control_), ConfigError);
}

TEST_F(Training, APromptThatComesTwiceInARolloutGetsOtherSamples) {
  RlOptions options = rl("run");
  options.prompt_data += "@[0:1]";
  options.num_rollout = 1;
  options.rollout_batch_size = 8;
  options.n_samples = 1;
  run_rl(options, control_);
  const double length = metrics("run")[0]["response_len"].get<double>();
  EXPECT_NE(length, std::floor(length));  // eight equal samples would have a whole number as their mean
}

TEST_F(Training, PromptsLongerThanTheContextAreDroppedWhateverTheLimitSays) {
  RlOptions options = rl("run");
  fs::write_file_atomic(dir_.path() / "long.jsonl", Json{{"prompt", std::string(4000, '1')}, {"label", "1"}}.dump() +
                                                        "\n" + Json{{"prompt", "1+1="}, {"label", "2"}}.dump() + "\n");
  options.prompt_data = (dir_.path() / "long.jsonl").string();
  options.max_prompt_len = 100000;
  options.num_rollout = 1;
  run_rl(options, control_);
  EXPECT_NE(info_.str().find("1 too long"), std::string::npos);
}

TEST_F(Training, AnEvaluationThatWasInterruptedIsMadeUpFor) {
  RlOptions options = rl("eval");
  options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 2;
  options.eval_before_train = false;
  options.eval_sampling.max_tokens = 12;
  options.num_rollout = 2;
  control_.interrupted = [&] { return info_.str().find("rollout 2/2 |") != std::string::npos; };
  EXPECT_THROW(run_rl(options, control_), Cancelled);
  control_.interrupted = [] { return false; };
  options.save.load = options.save.save;
  for (int i = 0; i < 2; ++i) run_rl(options, control_);
  const auto lines = metrics("eval");
  ASSERT_EQ(lines.size(), 3u);  // two rollouts and one evaluation, made once
  EXPECT_EQ(lines[2]["eval"], "held_out");
}

TEST_F(Training, KlIsLoggedWhenAskedForAndSmallAtFirst) {
  RlOptions options = rl("kl");
  options.use_kl_loss = true;
  options.loss.kl_coef = 0.1f;
  options.num_rollout = 2;
  run_rl(options, control_);
  const auto lines = metrics("kl");
  EXPECT_EQ(lines[0]["kl"].get<double>(), 0.0);  // B is 0 at first: the policy is the reference
  EXPECT_GT(lines[1]["kl"].get<double>(), 0.0);
}

TEST_F(Training, EvaluationsAreLines) {
  RlOptions options = rl("eval");
  options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 2;
  options.eval_sampling.temperature = 0;
  options.eval_sampling.max_tokens = 12;
  run_rl(options, control_);
  std::vector<int64_t> steps;
  for (const Json& line : metrics("eval"))
    if (line.contains("eval")) {
      EXPECT_EQ(line["eval"], "held_out");
      EXPECT_GE(line["accuracy"].get<double>(), 0.0);
      steps.push_back(line["step"].get<int64_t>());
    }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 2, 4}));
}

TEST_F(Training, InterruptBeforeTheFirstIterationSavesNothingAndSaysSo) {
  control_.interrupted = [] { return true; };
  try {
    run_rl(rl("none"), control_);
    FAIL() << "not interrupted";
  } catch (const Cancelled& stopped) {
    EXPECT_NE(std::string(stopped.what()).find("before the first iteration"), std::string::npos);
  }
  EXPECT_FALSE(checkpoint::latest_iteration(rl("none").save.save).has_value());
}

TEST_F(Training, TheBaseIsTheSameInFileAndMemoryBeforeAndAfter) {
  Stream stream({.threads = 2});
  const Base base = load_base({.hf_checkpoint = kTiny}, stream, control_);
  EXPECT_EQ(fingerprint_of_memory(*base.model, stream), base.fingerprint);
  const Adapter adapter = fresh_adapter(sft("x").adapter.config, base, 1);
  train::Trainer trainer(base.model, adapter.layout, adapter.weights, {}, stream);
  for (int step = 0; step < 3; ++step) {
    const auto datum = train::make_datum({1, 2, 3, 4, 5}, {0, 1, 1, 1, 1});
    trainer.begin_step({.num_samples = 1, .weight_total = 4});
    trainer.forward_backward(std::span(&datum, 1), train::SftLoss{});
    trainer.optim_step(1e-2f);
  }
  EXPECT_EQ(fingerprint_of_memory(*base.model, stream), base.fingerprint);
  const auto state = trainer.state();
  EXPECT_EQ(state.first_moment->bytes(), static_cast<size_t>(adapter.layout->num_floats) * sizeof(float));
}

TEST_F(Training, LoadWithoutACheckpointIsAnErrorUnlessItIsSave) {
  SftOptions options = sft("save");
  options.save.load = (dir_.path() / "elsewhere").string();
  EXPECT_THROW(run_sft(options, control_), ConfigError);
  options.save.load = options.save.save;
  options.num_epoch = 1;
  run_sft(options, control_);
  EXPECT_NE(info_.str().find("starting fresh"), std::string::npos);
}

TEST_F(Training, ResumingWithAnotherAdapterShapeIsAnError) {
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

TEST_F(Training, AnAdapterOfAnotherBaseIsRefused) {
  SftOptions options = sft("save");
  options.num_epoch = 1;
  run_sft(options, control_);
  Stream stream({.threads = 1});
  const Base other = load_base({.hf_checkpoint = kArith}, stream, control_);
  const std::string adapter = options.save.save + "/iter_0000003/lora_adapter";
  try {
    load_adapter(adapter, other);
    FAIL() << "loaded";
  } catch (const FormatError& refused) {
    EXPECT_NE(std::string(refused.what()).find("another base"), std::string::npos);
  }
}

TEST_F(Training, AWarmStartBeginsAtTheGivenAdapter) {
  SftOptions first = sft("first");
  first.num_epoch = 1;
  run_sft(first, control_);
  SftOptions second = sft("second");
  second.adapter.adapter_path = first.save.save + "/iter_0000003/lora_adapter";
  second.optimizer.schedule.lr = 0;
  second.optimizer.weight_decay = 0;
  second.num_epoch = 1;
  run_sft(second, control_);
  EXPECT_EQ(adapter_bytes("first", 3), adapter_bytes("second", 3));
}

TEST_F(Training, BadRowsNameTheirLineAndNothingIsWritten) {
  const auto fails = [&](const std::string& row, const std::string& word) {
    SftOptions options = sft("bad");
    options.prompt_data = (dir_.path() / "bad.jsonl").string();
    fs::write_file_atomic(options.prompt_data, "{\"tokens\": [1, 2], \"loss_mask\": [0, 1]}\n" + row + "\n");
    try {
      run_sft(options, control_);
      ADD_FAILURE() << row << " was accepted";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("bad.jsonl line 2"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    EXPECT_FALSE(checkpoint::latest_iteration(options.save.save).has_value());
  };
  fails(R"({"tokens": [1, 2], "loss_mask": [1, 1]})", "first token");
  fails(R"({"tokens": [1, 2], "loss_mask": [0, 0]})", "target");
  fails(R"({"tokens": [1, 2, 3], "loss_mask": [0, 1]})", "length");
  fails(R"({"tokens": [1, 304], "loss_mask": [0, 1]})", "304");
  fails(R"({"tokens": [1, -1], "loss_mask": [0, 1]})", "-1");
  fails(R"({"tokens": "1 2", "loss_mask": [0, 1]})", "tokens");
  fails(R"({"tokens": [1, 2], "loss_mask": [0, 0.5]})", "loss_mask");
}

TEST_F(Training, AnUnwritableSaveDirectoryStopsBeforeAnyWork) {
  SftOptions options = sft("x");
  fs::write_file_atomic(dir_.path() / "file", "not a directory");
  options.save.save = (dir_.path() / "file" / "run").string();
  EXPECT_THROW(run_sft(options, control_), ResourceError);
  EXPECT_EQ(info_.str(), "");
}

TEST_F(Training, ScoreKeepsTheRowAndPrintsPerplexity) {
  const std::string input = (dir_.path() / "rows.jsonl").string(), output = (dir_.path() / "scored.jsonl").string();
  fs::write_file_atomic(input, "{\"tokens\": [1, 2, 3], \"id\": \"a\"}\n{\"tokens\": [5]}\n");
  run_score({.base = {.hf_checkpoint = kTiny}, .input = input, .output = output}, control_);
  std::istringstream text(fs::read_file(output));
  std::string line;
  std::getline(text, line);
  const Json first = Json::parse(line);
  EXPECT_EQ(first["id"], "a");
  ASSERT_EQ(first["logprobs"].size(), 3u);
  EXPECT_TRUE(first["logprobs"][0].is_null());
  const double mean = (first["logprobs"][1].get<double>() + first["logprobs"][2].get<double>()) / 2;
  std::getline(text, line);
  EXPECT_EQ(Json::parse(line)["logprobs"], Json::array({nullptr}));
  const std::string printed = out_.str();
  ASSERT_EQ(printed.rfind("perplexity ", 0), 0u) << printed;
  EXPECT_NEAR(std::stod(printed.substr(11)), std::exp(-mean), 1e-4 * std::exp(-mean));
}

TEST_F(Training, GenerateIsReproducibleAndPrintsOnlyCompletions) {
  GenerateOptions options{.base = {.hf_checkpoint = kArith}, .prompt = "12+34=", .temperature = 1.0f, .max_tokens = 16};
  run_generate(options, control_);
  const std::string first = out_.str();
  out_.str("");
  run_generate(options, control_);
  EXPECT_EQ(out_.str(), first);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
  EXPECT_EQ(first.find("12+34="), std::string::npos);
}

}  // namespace
}  // namespace lockstep::recipes
