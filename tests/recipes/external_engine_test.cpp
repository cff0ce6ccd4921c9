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
  options.save.load = options.save.save;
  run_rl(options, control_);
  expect_whole("part", 4);
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
  options.save.load = options.save.save;
  run_rl(options, control_);
  expect_whole("stopped", 3);
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

}  // namespace
}  // namespace lockstep::recipes
