// Whole runs whose rollouts come from servers (support/fake_engine.h), which are honest, or are killed.
#include <thread>

#include "recipes/training_fixture.h"
#include "support/honest_engine.h"
#include "support/tensor_request.h"

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
  std::thread killer([&] {
    // Checks ask for one sample, rollouts for four.
    const auto in_a_rollout = [&] {
      const std::vector<OrderedJson> bodies = server.bodies();
      return !bodies.empty() && bodies.back()["n"] == 4;
    };
    server.token_ms = 20;
    while (!in_a_rollout()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
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

}  // namespace
}  // namespace lockstep::recipes
