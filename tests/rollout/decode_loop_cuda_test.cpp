// Decode steps that cannot be recorded: a thread waits for the engine's stream all the time, which CUDA takes as a
// reason to invalidate what is being recorded on it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/error.h"
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
  constexpr uint32_t kRounds = 200;
  Engine undisturbed(model_, {}, gpu());
  hold(undisturbed, adapter_);
  std::vector<std::vector<Sample>> wanted;
  for (uint32_t round = 0; round < 4; ++round) wanted.push_back(sample(undisturbed, round));
  EXPECT_EQ(undisturbed.stats().failed_recordings, 0);

  std::atomic<bool> stop = false;
  std::thread disturber([&] {
    while (!stop) try {
        gpu().synchronize();
      } catch (const DeviceError&) {  // it met a recording
      }
  });
  int64_t failed_recordings = 0, failed_steps = 0;
  for (uint32_t round = 0; round < kRounds && failed_recordings < 10; ++round) {
    Engine engine(model_, {}, gpu());  // without graphs
    hold(engine, adapter_);
    expect_same(sample(engine, round % 4), wanted[round % 4], "round " + std::to_string(round));
    failed_recordings += engine.stats().failed_recordings;
    failed_steps += engine.stats().failed_steps;
  }
  stop = true;
  disturber.join();
  EXPECT_GT(failed_recordings, 0) << "nothing was disturbed";
  EXPECT_EQ(failed_steps, 0);

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
