// Which checkpoint a run goes on from, what of it, and when it is saved.
#include <filesystem>

#include "recipes/algorithm.h"
#include "recipes/run_settings.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

class ResumeChoice : public Training {
 protected:
  // An SFT run of 6 steps with a checkpoint of each, whose last are gone.
  SftOptions stopped_at(const std::string& name, int64_t iteration) {
    SftOptions options = sft(name);
    options.save.save_interval = 1;
    run_sft(options, control_);
    for (int64_t later = iteration + 1; later <= 6; ++later) checkpoint::remove_iteration(options.save.save, later);
    checkpoint::mark_latest(options.save.save, iteration);
    options.save.load = options.save.save;
    info_.str("");
    return options;
  }
  fs::Path file(const std::string& name, int64_t iteration, const std::string& file) const {
    return dir_ / name / checkpoint::iteration_directory_name(iteration) / file;
  }
  void flip(const fs::Path& file) {
    std::string bytes = fs::read_file(file);
    bytes[bytes.size() / 2] ^= 1;
    fs::write_file_atomic(file, bytes);
  }
  bool said(const std::string& text) const { return info_.str().find(text) != std::string::npos; }
};

TEST_F(ResumeChoice, ADamagedCheckpointIsPassedOverByName) {
  run_sft(sft("whole"), control_);
  const SftOptions options = stopped_at("part", 4);
  flip(file("part", 4, "train_state.safetensors"));
  fs::write_file_atomic(file("part", 3, "lora_adapter/adapter_config.json"), "{}");
  run_sft(options, control_);
  EXPECT_TRUE(said("checkpoint iter_0000004 is passed over")) << info_.str();
  EXPECT_TRUE(said("train_state.safetensors")) << info_.str();
  EXPECT_TRUE(said("checkpoint iter_0000003 is passed over")) << info_.str();
  EXPECT_TRUE(said("at iteration 2")) << info_.str();
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
}

// Whatever file is damaged, the run goes on from the checkpoint before, and ends as if nothing had been.
TEST_F(ResumeChoice, AFlippedBitInAnyFileIsFound) {
  run_sft(sft("whole"), control_);
  SftOptions options = stopped_at("part", 2);
  options.save.save_interval = 100;
  std::vector<fs::Path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(file("part", 2, "")))
    if (entry.is_regular_file()) files.push_back(entry.path());
  ASSERT_GE(files.size(), 6u);
  std::filesystem::copy(dir_ / "part", dir_ / "kept", std::filesystem::copy_options::recursive);
  for (const fs::Path& damaged : files) {
    std::filesystem::remove_all(dir_ / "part");
    std::filesystem::copy(dir_ / "kept", dir_ / "part", std::filesystem::copy_options::recursive);
    flip(damaged);
    info_.str("");
    run_sft(options, control_);
    EXPECT_TRUE(said("iter_0000002 is passed over")) << damaged << info_.str();
    EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6)) << damaged;
  }
}

TEST_F(ResumeChoice, WithoutAWholeCheckpointNothingBegins) {
  const SftOptions options = stopped_at("part", 1);
  flip(file("part", 1, "train_state.json"));
  testing::expect_error<FormatError>([&] { run_sft(options, control_); },
                                     {"none of the checkpoints can be gone on from", "train_state.json"});
}

TEST_F(ResumeChoice, ADamagedMarkerIsSaidAndTheNewestIsTaken) {
  run_sft(sft("whole"), control_);
  const SftOptions options = stopped_at("part", 4);
  fs::write_file_atomic(dir_ / "part" / "latest_checkpointed_iteration.txt", "4x");
  run_sft(options, control_);
  EXPECT_TRUE(said("damaged checkpoint marker")) << info_.str();
  EXPECT_TRUE(said("at iteration 4")) << info_.str();
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
}

TEST_F(ResumeChoice, ALostMarkerIsSaidAndTheNewestIsTaken) {
  run_sft(sft("whole"), control_);
  SftOptions options = stopped_at("part", 4);
  const fs::Path marker = dir_ / "part" / "latest_checkpointed_iteration.txt";
  std::filesystem::remove(marker);
  run_sft(options, control_);
  EXPECT_TRUE(said("latest_checkpointed_iteration.txt is missing")) << info_.str();
  EXPECT_TRUE(said("at iteration 4")) << info_.str();
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
  // A run with other settings does not begin over them either.
  std::filesystem::remove(marker);
  options.optimizer.schedule.lr = 5e-3;
  testing::expect_error<FormatError>([&] { run_sft(options, control_); },
                                     {"none of the checkpoints can be gone on from", "latest_checkpointed_iteration.txt is missing"});
}

// The directory holds checkpoints of an earlier run with another learning rate.
TEST_F(ResumeChoice, AnEarlierRunsCheckpointDoesNotStandInForADamagedOne) {
  stopped_at("part", 2);
  SftOptions options = sft("part");
  options.optimizer.schedule.lr = 5e-3;
  options.save.save_interval = 3;
  options.num_steps = 3;
  run_sft(options, control_);
  flip(file("part", 3, "train_state.json"));
  options.save.load = options.save.save;
  info_.str("");
  testing::expect_error<FormatError>([&] { run_sft(options, control_); }, {"none of the checkpoints can be gone on from"});
  EXPECT_TRUE(said("iter_0000002 is passed over: it was made with other settings")) << info_.str();
}

TEST_F(ResumeChoice, AnIterationCanBeChosen) {
  run_sft(sft("whole"), control_);
  SftOptions options = stopped_at("part", 5);
  options.save.ckpt_step = 2;
  run_sft(options, control_);
  EXPECT_TRUE(said("at iteration 2")) << info_.str();
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
  options.save.ckpt_step = 9;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); }, {"ckpt_step 9", "2, 3, 4"});
  options.save.ckpt_step = 3;
  flip(file("part", 3, "train_state.json"));
  testing::expect_error<FormatError>([&] { run_sft(options, control_); }, {"iter_0000003"});
}

TEST_F(ResumeChoice, FinetuneTakesTheAdapterAlone) {
  SftOptions options = stopped_at("first", 6);
  options.save.save = (dir_ / "second").string();
  options.save.finetune = true;
  options.optimizer.schedule.lr = 1e-9;
  run_sft(options, control_);
  ASSERT_EQ(metrics("second").size(), 6u);
  EXPECT_EQ(metrics("second")[0]["step"], 1);
  // The adapter is the trained one: its loss is the one that the first run ended with, not the one it began with.
  EXPECT_LT(metrics("second")[0]["loss"].get<double>(), 0.9 * metrics("first")[0]["loss"].get<double>());
  // The same from its directory.
  SftOptions warm = sft("third");
  warm.adapter = {.adapter_path = file("first", 6, "lora_adapter").string()};
  warm.optimizer.schedule.lr = 1e-9;
  run_sft(warm, control_);
  EXPECT_EQ(adapter_bytes("second", 6), adapter_bytes("third", 6));
}

// What miles and vime save: `adapter` in an iteration, beside optimizer files of their own.
TEST_F(ResumeChoice, AnAdapterOfAnotherSystemsCheckpointIsAStart) {
  stopped_at("first", 6);
  const fs::Path foreign = dir_ / "foreign" / "iter_0000006" / "adapter", plain = dir_ / "plain";
  for (const fs::Path& to : {foreign, plain}) {
    std::filesystem::create_directories(to);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      std::filesystem::copy(file("first", 6, "lora_adapter") / name, to / name);
  }
  dir_.write("foreign/iter_0000006/adapter/training_state_rank0.pt", "theirs");
  dir_.write("foreign/latest_checkpointed_iteration.txt", "6");
  SftOptions own = sft("own"), theirs = sft("theirs");
  own.adapter = {.adapter_path = plain.string()};
  theirs.adapter = {.adapter_path = (dir_ / "foreign").string()};
  run_sft(own, control_);
  run_sft(theirs, control_);
  EXPECT_TRUE(said("not read: training_state_rank0.pt")) << info_.str();
  EXPECT_TRUE(adapter_bytes("own", 6) == adapter_bytes("theirs", 6));
  theirs.adapter.adapter_path = (dir_ / "nowhere").string();
  EXPECT_THROW(run_sft(theirs, control_), Error);
  // The same by the flag of launch scripts.
  for (const std::optional<int64_t> step : {std::optional<int64_t>(), std::optional<int64_t>(6)}) {
    SftOptions loaded = sft(step ? "chosen" : "loaded");
    loaded.save.load = (dir_ / "foreign").string();
    loaded.save.ckpt_step = step;
    info_.str("");
    run_sft(loaded, control_);
    EXPECT_TRUE(said("not read: training_state_rank0.pt")) << info_.str();
    EXPECT_TRUE(said("of another system; everything else starts anew")) << info_.str();
    EXPECT_TRUE(adapter_bytes(step ? "chosen" : "loaded", 6) == adapter_bytes("own", 6));
  }
  SftOptions over = sft("foreign");
  over.save.load = over.save.save;
  testing::expect_error<ConfigError>([&] { run_sft(over, control_); }, {"another SaveOptions::save"});
  std::filesystem::remove(foreign / "adapter_config.json");
  over = sft("shards");
  over.save.load = (dir_ / "foreign").string();
  testing::expect_error<FormatError>([&] { run_sft(over, control_); }, {"no adapter_config.json"});
}

TEST_F(ResumeChoice, WithoutTheOptimizersStateItsStepsBeginAnew) {
  SftOptions options = stopped_at("part", 4);
  options.save.load_optimizer = false;
  run_sft(options, control_);
  EXPECT_TRUE(said("optimizer and its schedule start anew")) << info_.str();
  const Json state = read_json(file("part", 6, "train_state.json").string());
  EXPECT_EQ(state["counters"]["optimizer_steps"], 2);
  EXPECT_EQ(state["iteration"], 6);
}

TEST_F(ResumeChoice, OtherSettingsNeedAnOverride) {
  SftOptions options = stopped_at("part", 4);
  options.optimizer.schedule.lr = 2e-3;
  options.shuffle_seed = 9;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); },
                                     {"--lr 0.002", "--lr 0.01", "--rollout-seed 9", "--rollout-seed 42",
                                      "SaveOptions::overrides lr rollout-seed", "train_state.json"});
  options.save.overrides = {"lr"};
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); }, {"--rollout-seed 9"});
  SftOptions seeds = options;
  seeds.save.load_rng = false;
  run_sft(seeds, control_);
  EXPECT_TRUE(said("--lr is 0.002 from now on; it was 0.01")) << info_.str();
  EXPECT_EQ(read_json(file("part", 6, "train_state.json").string())["counters"]["settings"]["--lr"], 0.002);
}

// Every parameter of the method decides what is learned, so a checkpoint keeps each that is not as usual.
TEST(AlgorithmSettings, EveryParameterIsKept) {
  const auto kept = [](auto change) {
    RlOptions options;
    change(options);
    return algorithm_settings(options);
  };
  EXPECT_TRUE(kept([](RlOptions&) {}).empty());
  EXPECT_TRUE(kept([](RlOptions& o) { o.loss.sapo.negative = 2; }).contains("shape of --policy-loss"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.loss.unbiased_kl = true; }).contains("shape of --policy-loss"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.loss.dro_beta = 1; }).contains("shape of --policy-loss"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.row_choice.share = 0.5; }).contains("shares of --policy-loss"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.correction.veto = 1e-4; }).contains("rules of --use-tis"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.kl_control.target = 0.1; }).contains("target of --kl-coef"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.entropy_control.on = true; }).contains("control of --entropy-coef"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.parameters.ngram = 5; }).contains("parameters of --rm-type"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.advantage.group.eps = 1e-4; }).contains("--advantage-eps"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.advantage.group.population_std = true; }).contains("--reward-std"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.command = "grade"; }).contains("--reward-command"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.python_path = "a.b"; }).contains("--custom-rm-path"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.groups = true; }).contains("--group-rm"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.reward_key = "acc"; }).contains("--reward-key"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.judge_model = "m"; }).contains("--judge-model"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.code_timeout_s = 3; }).contains("--code-timeout"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reward.url = "http://elsewhere"; }).empty()) << "a service may move";
  EXPECT_TRUE(kept([](RlOptions& o) { o.engine.kind = rollout::EngineKind::vllm; }).contains("--rollout-engine"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.reference = "adapter"; }).contains("--ref-load"));
  EXPECT_TRUE(kept([](RlOptions& o) { o.distill = true; }).contains("--use-opd"));
  RlOptions one, two;
  one.correction.rules = {{.high = 2}}, two.correction.rules = {{.high = 3}};
  EXPECT_NE(algorithm_settings(one), algorithm_settings(two));
}

TEST(ScheduleSettings, AWsdDecayKeepsItsShape) {
  for (const char* style : {"exponential", "linear", "cosine", "minus_sqrt"})
    EXPECT_EQ(schedule_settings({.style = train::DecayStyle::wsd,
                                 .wsd_style = train::parse_wsd_style(style)})["--lr-wsd-decay-style"],
              style);
  EXPECT_FALSE(schedule_settings({.style = train::DecayStyle::cosine}).contains("--lr-wsd-decay-style"));
}

TEST_F(ResumeChoice, ALongerScheduleNeedsAnOverride) {
  SftOptions options = stopped_at("part", 4);
  options.num_epoch = 3;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); }, {"--lr-decay-iters 9", "--lr-decay-iters 6"});
  options.save.overrides = {"--lr-decay-iters"};
  run_sft(options, control_);
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 9);
}

TEST_F(ResumeChoice, OtherMicroBatchesAndThreadsGoOnBitForBit) {
  run_sft(sft("whole"), control_);
  SftOptions options = stopped_at("part", 3);
  options.training.max_tokens = 64;
  options.base.stream.threads = 1;
  options.base.stream.isa = CpuIsa::avx2;
  run_sft(options, control_);
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
}

TEST_F(ResumeChoice, AnotherDeviceIsSaid) {
  const SftOptions options = stopped_at("part", 4);
  Json state = read_json(file("part", 4, "train_state.json").string());
  state["counters"]["device"] = "NVIDIA H200";
  state.erase("state_sha256");  // as an older build saved it
  fs::write_file_atomic(file("part", 4, "train_state.json"), state.dump());
  run_sft(options, control_);
  EXPECT_TRUE(said("made on NVIDIA H200 and the run goes on on cpu: bits change")) << info_.str();
}

TEST_F(ResumeChoice, AGpuOfAnotherGenerationIsRefused) {
  EXPECT_TRUE(generation_differences("9.0", "9.0").empty());
  EXPECT_TRUE(generation_differences("cpu", "9.0").empty() && generation_differences("9.0", "cpu").empty());
  const std::vector<SettingDifference> found = generation_differences("9.0", "10.0");
  testing::expect_error<ConfigError>([&] { require_same_settings(found, {}, "iter_0000004"); },
                                     {"compute capability 9.0", "compute capability 10.0", "device"});
  EXPECT_EQ(require_same_settings(found, {"device"}, "iter_0000004").size(), 1u);
  // What a checkpoint says is what is compared.
  run_sft(sft("part"), control_);
  EXPECT_EQ(read_json(file("part", 6, "train_state.json").string())["counters"]["device_generation"], "cpu");
}

TEST_F(ResumeChoice, ACheckpointOfABuildWithNumericsGoesOn) {
  const SftOptions options = stopped_at("part", 4);
  Json state = read_json(file("part", 4, "train_state.json").string());
  state["counters"]["settings"]["--numerics"] = "exact";
  state.erase("state_sha256");  // as an older build saved it
  fs::write_file_atomic(file("part", 4, "train_state.json"), state.dump());
  run_sft(options, control_);
  EXPECT_EQ(differences({{"--numerics", "fast"}}, OrderedJson::object()).size(), 1u);
}

TEST_F(ResumeChoice, ASaveCanBeAskedFor) {
  SftOptions options = sft("run");
  options.save.save_interval = 100;
  options.save.trigger_sentinel = (dir_ / "save_now").string();
  int steps = 0;
  control_.save_requested = [&] { return ++steps == 2; };
  control_.interrupted = [&] {
    if (steps == 3) dir_.write("save_now", "");
    return false;
  };
  run_sft(options, control_);
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_TRUE(said("saved   iteration 2, as asked")) << info_.str();
  EXPECT_FALSE(fs::exists(options.save.trigger_sentinel));
}

TEST_F(ResumeChoice, OnlyTheNewestStayAndTheBest) {
  SftOptions options = sft("run");
  options.save.save_interval = 1;
  options.save.total_limit = 2;
  options.eval_sets = {{"held_out", options.prompt_data}};
  options.eval_interval = 1;
  options.save_best = true;
  options.threshold = 1e9;  // only the first is ever better
  run_sft(options, control_);
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), (std::vector<int64_t>{1, 5, 6}));
  EXPECT_EQ(checkpoint::best_iteration(options.save.save), 1);
  options.save.load = options.save.save;
  options.num_epoch = 3;
  options.save.overrides = {"lr-decay-iters"};
  run_sft(options, control_);
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), (std::vector<int64_t>{1, 8, 9}));
}

// Its number would name a checkpoint of the fresh run, which nobody compared.
TEST_F(ResumeChoice, AFreshRunsFirstCheckpointEndsTheMarkOfAnEarlierBest) {
  SftOptions options = sft("save");
  options.eval_sets = {{.name = "held", .path = options.prompt_data}};
  options.eval_interval = 2;
  options.save_best = true;
  run_sft(options, control_);
  const auto best = checkpoint::best_iteration(options.save.save);
  ASSERT_TRUE(best.has_value());
  // A run that goes on keeps it.
  options.save.load = options.save.save;
  options.num_epoch = 3;
  options.eval_interval = 0;
  options.eval_sets.clear();
  options.save.overrides = {"lr-decay-iters"};
  run_sft(options, control_);
  EXPECT_EQ(checkpoint::best_iteration(options.save.save), best);

  SftOptions fresh = sft("save");
  int asked = 0;
  control_.interrupted = [&asked] { return ++asked > 1; };
  fresh.save.save_interval = 100;
  EXPECT_THROW(run_sft(fresh, control_), Cancelled);
  const bool saved = checkpoint::latest_iteration(fresh.save.save) != 9;  // what it has completed
  EXPECT_EQ(checkpoint::best_iteration(fresh.save.save), saved ? std::nullopt : best);
  control_.interrupted = [] { return false; };
  run_sft(fresh, control_);
  EXPECT_FALSE(checkpoint::best_iteration(fresh.save.save).has_value());
}

}  // namespace
}  // namespace lockstep::recipes
