// Decode steps that cannot be recorded, because what is recorded waits for the engine's stream, and graphs that outlive
// a version.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "rollout/tiny_model.h"
#include "support/gpu.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;

class DecodeLoopCuda : public testing::OnGpu<> {
 protected:
  void make() override {
    model_ = random_model(config_, gpu());
    adapter_ = testing::placed(random_adapter(config_, 3, 1), gpu());
  }
  std::vector<Sample> sample(Engine& engine, uint32_t number) {
    const std::vector<Prompt> prompts = random_prompts({3, 20, 41, 90}, config_.vocab_size, number);
    return sample_groups(engine, prompts, {.sampling = {.temperature = 0.8f, .max_tokens = 40, .seed = number}, .n = 2},
                         actor(3));
  }

  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_;
  lora::AdapterVersion adapter_;
};

TEST_F(DecodeLoopCuda, AStepThatCannotBeRecordedIsRunAsItIs) {
  constexpr uint32_t kRounds = 8;
  Engine undisturbed(model_, {}, gpu());
  hold(undisturbed, adapter_);
  std::vector<std::vector<Sample>> wanted;
  for (uint32_t round = 0; round < kRounds; ++round) wanted.push_back(sample(undisturbed, round));
  EXPECT_EQ(undisturbed.stats().failed_recordings, 0);

  // Every recording fails, or only the first ones.
  for (const int64_t failing : {1000, 2}) {
    int64_t asked = 0;
    const auto disturb = [&] {
      if (asked++ < failing) gpu().synchronize();
    };
    Engine engine(model_, {.while_recording = disturb}, gpu());
    hold(engine, adapter_);
    for (uint32_t round = 0; round < kRounds; ++round)
      expect_same(sample(engine, round), wanted[round], "round " + std::to_string(round));
    EXPECT_EQ(engine.stats().failed_recordings, std::min(asked, failing));
    EXPECT_GT(engine.stats().failed_recordings, 1);
    EXPECT_EQ(engine.stats().recordings, std::max<int64_t>(asked - failing, 0));
    EXPECT_EQ(engine.stats().recordings > 0, failing == 2);
    EXPECT_EQ(engine.stats().failed_steps, 0);
  }

  Engine after(model_, {}, gpu());
  hold(after, adapter_);
  expect_same(sample(after, 0), wanted[0], "after the disturbance");
  EXPECT_EQ(after.stats().failed_recordings, 0);
}

// The graphs of one version are those of the next, though its buffer lies elsewhere, and its bits are its own.
TEST_F(DecodeLoopCuda, ANewVersionNeedsNoRecording) {
  const auto sample_with = [&](Engine& engine, int64_t version) {
    const std::vector<Prompt> prompts = random_prompts({3, 20, 41, 90}, config_.vocab_size, 1);
    return sample_groups(engine, prompts, {.sampling = {.temperature = 0.8f, .max_tokens = 40, .seed = 1}, .n = 2},
                         actor(version));
  };
  // Versions of a run share their layout.
  lora::AdapterVersion next = testing::placed(random_adapter(config_, 4, 2), gpu());
  next.layout = adapter_.layout;
  Engine engine(model_, {}, gpu()), other(model_, {}, gpu());
  hold(engine, adapter_);
  const std::vector<Sample> first = sample_with(engine, 3);
  const int64_t recordings = engine.stats().recordings;
  EXPECT_GT(recordings, 0);
  hold(engine, next);
  const std::vector<Sample> second = sample_with(engine, 4);
  // The answers may have other lengths, and so a shape or two of their own.
  EXPECT_LE(engine.stats().recordings, recordings + 2);
  hold(other, next);
  expect_same(sample_with(other, 4), second, "an engine that has seen no other version");
  expect_same(sample_with(engine, 3), first, "the first version again");
  EXPECT_LE(engine.stats().recordings, recordings + 2);
}

}  // namespace
}  // namespace lockstep::rollout
