// Whole runs whose rollouts come from servers (support/fake_engine.h), which are honest, or are killed.
#include <thread>

#include "recipes/base.h"
#include "recipes/training_fixture.h"
#include "service/hello.h"
#include "support/honest_engine.h"
#include "support/tensor_request.h"
#include "versions/server_check.h"

namespace lockstep::recipes {
namespace {

using rollout::Delivery, rollout::EngineKind;
using testing::FakeEngine, testing::HonestEngine;

class ExternalEngine : public Training {
 protected:
  RlOptions with(const std::string& save, EngineKind kind, std::initializer_list<FakeEngine*> servers) {
    RlOptions options = rl(save);
    options.num_rollout = 2;
    options.rollout_batch_size = 2;
    options.training.global_batch_size = 8;
    options.sampling.temperature = 0.9F;
    options.sampling.max_tokens = 6;
    options.adapter.config.target_modules = {"q_proj", "v_proj"};
    options.optimizer.schedule.lr = 2e-2;
    options.engine.kind = kind;
    options.engine.build = "test";
    for (const FakeEngine* server : servers) options.engine.addresses.push_back(server->address().text());
    return options;
  }
  // That training has seen every sample, and whose they were.
  void expect_whole(const std::string& save, int64_t rollouts) {
    const std::vector<Json> lines = metrics(save);
    ASSERT_EQ(static_cast<int64_t>(lines.size()), rollouts);
    for (int64_t i = 0; i < rollouts; ++i) {
      const Json& line = lines[static_cast<size_t>(i)];
      EXPECT_EQ(line["version"], i) << "each rollout is of the newest version";
      EXPECT_LT(line["mismatch_max"].get<double>(), 1e-4) << "an honest server's log-probs are the trainer's";
    }
  }
  // The run whose checkpoint lies there, from it to its end.
  void expect_goes_on(RlOptions options, const std::string& save, int64_t rollouts) {
    options.save.load = options.save.save;
    run_rl(options, control_);
    expect_whole(save, rollouts);
  }
  bool said(const std::string& text) const { return info_.str().find(text) != std::string::npos; }
};

// What a thread does when the next rollout is being sampled: checks ask for one sample, rollouts for four.
template <class Then>
std::thread in_a_rollout(FakeEngine& server, const Then& then) {
  return std::thread([&server, then, before = server.rollouts.load()] {
    while (server.rollouts == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    then();
  });
}

TEST_F(ExternalEngine, TrainsWithEveryKindAndEveryStrategy) {
  const std::pair<EngineKind, Delivery> kinds[] = {{EngineKind::vllm, Delivery::adapter_files},
                                                   {EngineKind::sglang, Delivery::adapter_files},
                                                   {EngineKind::sglang, Delivery::adapter_tensors}};
  for (const auto& [kind, delivery] : kinds) {
    FakeEngine server(kind, HonestEngine::of(kArith));
    server.read_tensors = testing::write_sent_tensors;
    const std::string save = std::string(rollout::engine_name(kind)) + std::to_string(static_cast<int>(delivery));
    RlOptions options = with(save, kind, {&server});
    options.engine.delivery = delivery;
    run_rl(options, control_);
    expect_whole(save, 2);
    EXPECT_TRUE(server.adapters().empty()) << "nothing is left at the server";
    EXPECT_TRUE(std::filesystem::is_empty(dir_ / save / "rollout_adapters")) << "nor in the directory";
  }
}

TEST_F(ExternalEngine, TrainsWithMergedWeights) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("weights", EngineKind::vllm, {&server});
  options.engine.delivery = Delivery::weight_files;
  options.adapter.config.use_dora = true;  // no server loads it as an adapter
  run_rl(options, control_);
  const std::vector<Json> lines = metrics("weights");
  ASSERT_EQ(lines.size(), 2);
  for (const Json& line : lines) EXPECT_LT(line["mismatch_mean"].get<double>(), 0.05) << "merged weights are bf16";
  EXPECT_EQ(server.weight_loads, 4) << "the probe, and versions 0, 1 and 2";

  // It still has them: an adapter of another run would lie on the wrong base.
  testing::expect_error<ConfigError>([&] { run_rl(with("after", EngineKind::vllm, {&server}), control_); },
                                     {"an earlier run", "lockstep-merged-v2"});

  FakeEngine another(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions refused = with("refused", EngineKind::vllm, {&another});
  refused.adapter.config.use_dora = true;
  testing::expect_error<ConfigError>([&] { run_rl(refused, control_); }, {"more than low-rank factors"});
}

TEST_F(ExternalEngine, AKilledServerIsWaitedForAndNothingIsLost) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("killed", EngineKind::vllm, {&server});
  options.num_rollout = 3;
  server.token_ms = 20;
  std::thread killer = in_a_rollout(server, [&] {
    server.kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    server.token_ms = 0;
    server.start();
  });
  run_rl(options, control_);
  killer.join();
  expect_whole("killed", 3);
  EXPECT_TRUE(said("is away") && said("is back")) << info_.str();
}

TEST_F(ExternalEngine, OfTwoServersOneDiesAndTheOtherGoesOn) {
  FakeEngine first(EngineKind::vllm, HonestEngine::of(kArith)), second(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("two", EngineKind::vllm, {&first, &second});
  options.num_rollout = 3;
  options.publish_dir = (dir_ / "published").string();
  std::thread killer = in_a_rollout(first, [&] { first.kill(); });
  run_rl(options, control_);
  killer.join();
  expect_whole("two", 3);
  EXPECT_TRUE(said("1 of 2 are left")) << info_.str();
  EXPECT_TRUE(second.adapters().empty());
  EXPECT_TRUE(fs::exists(dir_ / "published/latest/STABLE"));
  EXPECT_EQ(std::filesystem::read_symlink(dir_ / "published/latest"), "v3");
}

TEST_F(ExternalEngine, ARunGoesOnFromItsCheckpoint) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("part", EngineKind::vllm, {&server});
  options.publish_dir = (dir_ / "published").string();
  run_rl(options, control_);
  server.kill();  // a server without memory of the first run
  server.start();
  options.num_rollout = 4;
  expect_goes_on(options, "part", 4);
  EXPECT_TRUE(server.adapters().empty());
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "part/rollout_adapters"));
  EXPECT_EQ(std::filesystem::read_symlink(dir_ / "published/latest"), "v4");
}

// After the optimizer's steps, while the new version waits for a server that never answers.
TEST_F(ExternalEngine, AnInterruptWhileAVersionWaitsForAServerIsNoticedAtOnce) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("stopped", EngineKind::vllm, {&server});
  options.num_rollout = 3;
  std::atomic<bool> interrupted = false;
  control_.interrupted = [&] { return interrupted.load(); };
  std::chrono::steady_clock::time_point at;
  std::thread user = in_a_rollout(server, [&] {
    server.hang_changes = true;
    while (server.hung == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    server.hang_changes = false;
    at = std::chrono::steady_clock::now();
    interrupted = true;
  });
  EXPECT_THROW(run_rl(options, control_), Cancelled);
  user.join();
  EXPECT_LT(std::chrono::steady_clock::now() - at, std::chrono::seconds(20)) << "a load may take 600 s";
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 1) << "the trained iteration counts";
  EXPECT_TRUE(server.adapters().empty());
  interrupted = false;
  expect_goes_on(options, "stopped", 3);
}

TEST_F(ExternalEngine, AVersionThatNoServerLoadsIsSavedNevertheless) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("refused", EngineKind::vllm, {&server});
  options.num_rollout = 3;
  options.save.save_interval = 100;
  std::thread disk = in_a_rollout(server, [&] { server.refuse_loads = 500; });
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"does not load the adapter", "status 500"});
  disk.join();
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 1) << "only publishing failed";
  EXPECT_TRUE(said("before the failure")) << info_.str();
  server.refuse_loads = 0;
  expect_goes_on(options, "refused", 3);
}

TEST_F(ExternalEngine, WithoutSeedsNothingIsPromisedBitForBit) {
  FakeEngine server(EngineKind::sglang, HonestEngine::of(kArith));
  RlOptions options = with("interrupted", EngineKind::sglang, {&server});
  options.num_rollout = 50;
  std::atomic<bool> interrupted = false;
  control_.interrupted = [&] { return interrupted.load(); };
  std::thread user = in_a_rollout(server, [&] {
    while (server.rollouts < 6) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    interrupted = true;
  });
  try {
    run_rl(options, control_);
    ADD_FAILURE() << "it was not interrupted";
  } catch (const Cancelled& error) {
    EXPECT_NE(std::string(error.what()).find("go on from there"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("bit for bit"), std::string::npos) << error.what();
  }
  user.join();
  EXPECT_TRUE(said("no seed with its requests: SGLang reads one with --enable-deterministic-inference")) << info_.str();
}

// A proxy that reports other log-probs than those that the server computed.
TEST_F(ExternalEngine, LogprobsOfAnExactServerThatDifferAreTold) {
  std::atomic<bool> lies = false;
  const FakeEngine::Generate honest = HonestEngine::of(kArith);
  FakeEngine server(EngineKind::lockstep, [&](const std::string& directory, const std::vector<int32_t>& prompt,
                                              int64_t sample, const OrderedJson& sampling) {
    FakeEngine::Drawn drawn = honest(directory, prompt, sample, sampling);
    if (lies && sampling.value("n", 1) > 1)
      for (float& logprob : drawn.logprobs) logprob -= 1;
    return drawn;
  });
  Stream stream({.threads = 1});
  RlOptions options = with("exact", EngineKind::lockstep, {&server});
  options.num_rollout = 3;
  const Base base = load_base(options.base, stream, control_);
  server.hello = service::hello(base, options.engine.build);
  run_rl(options, control_);
  EXPECT_FALSE(said("warning log-probs")) << info_.str() << out_.str();
  lies = true;
  options.save.save = (dir_ / "lies").string();
  run_rl(options, control_);
  const std::string all = info_.str() + out_.str();
  const size_t told = all.find("warning log-probs of a server");
  ASSERT_NE(told, std::string::npos) << all;
  EXPECT_EQ(all.find("warning log-probs of a server", told + 1), std::string::npos) << "once";
}

TEST_F(ExternalEngine, LogprobsOfAnotherDistributionAreRefusedOrNotRead) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  server.logprobs_mode = "raw_logprobs";
  RlOptions options = with("raw", EngineKind::vllm, {&server});
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); },
                                     {"--logprobs-mode processed_logprobs", "policy_logprobs_only"});
  options.engine.policy_logprobs_only = true;
  run_rl(options, control_);
  for (const Json& line : metrics("raw")) {
    EXPECT_FALSE(line.contains("mismatch_mean")) << line;
    EXPECT_LT(line["logprob_diff"].get<double>(), 1e-6) << "the trainer's own";
  }
  RlOptions corrected = with("corrected", EngineKind::vllm, {&server});
  corrected.engine.policy_logprobs_only = true;
  corrected.correction.rules.emplace_back();
  testing::expect_error<ConfigError>([&] { run_rl(corrected, control_); },
                                     {"policy_logprobs_only", "off-policy corrections"});
}

// A server of this very build and base is exact until it is started again as something else.
TEST_F(ExternalEngine, AnExactServerStaysTheOneThatItWas) {
  FakeEngine server(EngineKind::lockstep, HonestEngine::of(kArith));
  RlOptions options = with("exact", EngineKind::lockstep, {&server});
  options.num_rollout = 3;
  Stream stream({.threads = 1});
  const Base base = load_base(options.base, stream, control_);
  const OrderedJson mine = service::hello(base, options.engine.build);
  server.hello = mine;
  run_rl(options, control_);
  EXPECT_TRUE(said("bit for bit")) << info_.str();
  for (const Json& line : metrics("exact")) EXPECT_FALSE(line.contains("mismatch_mean"));

  std::thread restart = in_a_rollout(server, [&] {
    server.kill();
    server.hello["build"] = "a later one";
    server.start();
  });
  server.token_ms = 20;
  testing::expect_error<versions::ServerFault>(
      [&] { run_rl(with("another", EngineKind::lockstep, {&server}), control_); },
      {"is another one now", "a later one"});
  restart.join();
}

// The old log-probs are those of the version that drew, computed by the trainer: what differs is the server's rounding.
TEST_F(ExternalEngine, SamplesAheadByTheRule) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("ahead", EngineKind::vllm, {&server});
  options.num_rollout = 5;
  options.staleness = {.max_staleness = 1};
  run_rl(options, control_);
  const std::vector<Json> lines = metrics("ahead");
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["version"], i == 0 ? 0 : static_cast<int64_t>(i) - 1);
    EXPECT_LT(lines[i]["mismatch_max"].get<double>(), 1e-4) << lines[i];
    ASSERT_TRUE(lines[i]["logprob_diff"].is_number()) << "known without another forward: " << lines[i];
    EXPECT_DOUBLE_EQ(lines[i]["logprob_diff_max"].get<double>(), lines[i]["mismatch_max"].get<double>());
  }
  EXPECT_EQ(server.max_adapters, 3) << "staleness + 2 have room at once";
  EXPECT_TRUE(server.adapters().empty());
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "ahead/rollout_adapters"));

  server.lora["max_loras"] = 2;
  options.save.save = (dir_ / "refused").string();
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"3 versions", "--max-loras 3"});
}

// A server is killed while it samples ahead, and a version is published meanwhile.
TEST_F(ExternalEngine, SamplesAheadThroughAnOutageAndAnInterrupt) {
  FakeEngine first(EngineKind::vllm, HonestEngine::of(kArith)), second(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("outage", EngineKind::vllm, {&first, &second});
  options.num_rollout = 8;
  options.staleness = {.max_staleness = 2};
  first.token_ms = 10;
  std::thread killer = in_a_rollout(first, [&] {
    second.token_ms = 300;  // so that there is something to sample until the first is back
    first.kill();
    first.token_ms = 0;
    const int before = first.rollouts;
    first.start();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (first.rollouts == before && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    second.token_ms = 0;
  });
  run_rl(options, control_);
  killer.join();
  EXPECT_EQ(metrics("outage").size(), 8u);
  EXPECT_TRUE(said("is away") && said("is back")) << info_.str();
  EXPECT_TRUE(first.adapters().empty() && second.adapters().empty());

  RlOptions stopped = with("stopped", EngineKind::vllm, {&first, &second});
  stopped.num_rollout = 4;
  stopped.staleness = {.max_staleness = 1};
  std::atomic<bool> interrupted = false;
  control_.interrupted = [&] { return interrupted.load(); };
  std::thread user = in_a_rollout(second, [&] { interrupted = true; });
  try {
    run_rl(stopped, control_);
  } catch (const Cancelled&) {
  }
  user.join();
  interrupted = false;
  stopped.save.load = stopped.save.save;
  run_rl(stopped, control_);
  const std::vector<Json> lines = metrics("stopped");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["version"], i == 0 ? 0 : static_cast<int64_t>(i) - 1);
  EXPECT_TRUE(first.adapters().empty() && second.adapters().empty());
}

TEST_F(ExternalEngine, TrainsOnWhatArrives) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kArith));
  RlOptions options = with("arriving", EngineKind::vllm, {&server});
  options.num_rollout = 5;
  options.async = {.on = true, .max_staleness = 1};
  options.correction.rules = {{.action = rl::CorrectionAction::mask, .low = 0, .high = 5}};
  server.token_ms = 2;
  run_rl(options, control_);
  const std::vector<Json> lines = metrics("arriving");
  ASSERT_EQ(lines.size(), 5u);
  for (const Json& line : lines) {
    EXPECT_LE(line.at("staleness_max").get<double>(), 1) << line;
    EXPECT_EQ(line.at("async/followed_samples"), 0) << "a server's sample is of one version";
  }
  EXPECT_TRUE(server.adapters().empty());
  options.checks.equal_logprobs = true;
  options.save.save = (dir_ / "refused").string();
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"versions that only servers hold"});
}

}  // namespace
}  // namespace lockstep::recipes
