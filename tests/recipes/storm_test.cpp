// Adapters that come and go under load, for LOCKSTEP_STORM_SECONDS; on a GPU 10 s each otherwise.
#include "recipes/storm.h"

#include <optional>

#include "recipes/base.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

class StormTest : public Training, public ::testing::WithParamInterface<Device> {
 protected:
  static constexpr int64_t kKvBytes = int64_t{64} << 20;

  void SetUp() override {
    if (GetParam() == Device::cuda)
      if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_.emplace(StreamOptions{.threads = 2, .device = GetParam()});
    base_ = load_base({.hf_checkpoint = kArith}, *stream_, control_);
    device_ = GetParam() == Device::cuda ? "cuda" : "cpu";
  }
  std::chrono::seconds duration() const { return storm_duration(GetParam() == Device::cuda ? 10 : 1); }

  std::optional<Stream> stream_;
  Base base_;
};
INSTANTIATE_TEST_SUITE_P(On, StormTest, ::testing::Values(Device::cpu, Device::cuda),
                         [](const auto& device) { return device.param == Device::cpu ? "Cpu" : "Cuda"; });

TEST_P(StormTest, EveryAnswerIsThatOfTheVersionItNames) {
  Storm storm(base_, kKvBytes);
  storm.start();
  const auto end = std::chrono::steady_clock::now() + duration();
  while (std::chrono::steady_clock::now() < end && storm.failures() == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  storm.stop();
  storm.expect_calm();
}

// GRPO with evaluation, publishing and checkpoints, on a stream of its own, beside the storm.
TEST_P(StormTest, ARunBesideItIsTheRunAlone) {
  const auto run = [&](const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 2;
    options.eval_sets = {{"held-out", kArith + "/test.jsonl@[0:8]"}};
    options.eval_interval = 1;
    options.eval_sampling.max_tokens = 12;
    options.eval_sampling.temperature = 0;
    options.kv_bytes = kKvBytes;
    run_rl(options, control_);
  };
  const auto evaluations = [&](const std::string& save) {
    std::vector<double> all;
    for (const Json& line : metrics(save)) {
      if (line.contains("eval")) all.push_back(line["accuracy"].get<double>());
      if (line.contains("logprob_diff_max")) {
        EXPECT_EQ(line["logprob_diff_max"].get<double>(), 0.0);
      }
    }
    return all;
  };
  run("alone");
  ASSERT_EQ(evaluations("alone").size(), 3u);
  Storm storm(base_, kKvBytes);
  storm.start();
  const auto end = std::chrono::steady_clock::now() + duration();
  int runs = 0;
  do {
    const std::string name = "run" + std::to_string(runs++);
    ASSERT_NO_THROW(run(name));
    ASSERT_EQ(adapter_bytes(name, 2), adapter_bytes("alone", 2)) << name;
    ASSERT_EQ(evaluations(name), evaluations("alone")) << name;
    std::filesystem::remove_all(dir_.path() / name);
    info_.str("");
  } while (std::chrono::steady_clock::now() < end && storm.failures() == 0);
  storm.stop();
  std::printf("%d runs beside it\n", runs);
  storm.expect_calm();
}

}  // namespace
}  // namespace lockstep::recipes
