// Processes with GPUs: several that share one, and one for each, have the bits of a process alone.
#include "core/gpu.h"
#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

class GpuRanksCuda : public Job {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) GTEST_SKIP() << "no GPU";
  }
  const std::string gpu_ = " --device cuda";
};

TEST_F(GpuRanksCuda, ProcessesThatShareAGpuHaveTheBitsOfOne) {
  ASSERT_EQ(run(0, sft("alone", 6) + gpu_), 0) << err();
  for (const int ranks : {2, 4}) {
    const std::string save = fmt::format("ranks{}", ranks);
    ASSERT_EQ(run(0, fmt::format("{} {} --ranks-per-gpu {}", sft(save, 6), gpu_, ranks)), 0) << err();
    EXPECT_NE(out().find("through host memory, over TCP"), std::string::npos) << out();
    expect_same_end(save, "alone", 6);
  }
}

TEST_F(GpuRanksCuda, ReinforcementLearningToo) {
  ASSERT_EQ(run(0, rl("alone", 3) + gpu_), 0) << err();
  ASSERT_EQ(run(0, rl("ranks4", 3) + gpu_ + " --colocate --ranks-per-gpu 4"), 0) << err();
  expect_same_end("ranks4", "alone", 3);
}

TEST_F(GpuRanksCuda, SamplingAheadToo) {
  const std::string ahead = gpu_ + " --max-staleness 1 --true-on-policy-mode";
  ASSERT_EQ(run(0, rl("alone", 4) + ahead), 0) << err();
  for (const int ranks : {2, 4}) {
    const std::string save = fmt::format("ranks{}", ranks);
    ASSERT_EQ(run(0, fmt::format("{} {} --ranks-per-gpu {}", rl(save, 4), ahead, ranks)), 0) << err();
    expect_same_end(save, "alone", 4);
  }
}

TEST_F(GpuRanksCuda, TwoRanksOnOneGpuAreRefusedUnlessTheyAreAskedFor) {
  EXPECT_EQ(run(2, sft("part", 2) + gpu_, ""), num_gpus() > 1 ? 0 : 6) << err();
  if (num_gpus() == 1) {
    ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    EXPECT_EQ(run(2, sft("part", 2) + gpu_), 2);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_NE(err().find("several ranks have one GPU"), std::string::npos) << err();
  }
}

TEST_F(GpuRanksCuda, AKilledProcessEndsTheJobAndItResumes) {
  constexpr int kSteps = 30;
  ASSERT_EQ(run(0, sft("alone", kSteps) + gpu_), 0) << err();
  start(0, sft("part", kSteps) + gpu_ + " --ranks-per-gpu 2");
  ASSERT_TRUE(reaches("part", 4)) << err();
  ::kill(ranks()[1], SIGKILL);
  EXPECT_EQ(finish(), 137) << err();
  ASSERT_EQ(run(0, sft("part", kSteps) + gpu_ + " --ranks-per-gpu 2"), 0) << err();
  expect_same_end("part", "alone", kSteps);
}

TEST_F(GpuRanksCuda, ProcessesWithAGpuEachHaveTheBitsOfOne) {
  if (num_gpus() < 2) GTEST_SKIP() << "one GPU";
  ASSERT_EQ(run(0, sft("alone", 6) + gpu_), 0) << err();
  for (const std::string backend : {"nccl", "gloo"}) {
    ASSERT_EQ(run(0, sft(backend, 6) + gpu_ + " --actor-num-gpus-per-node 2 --distributed-backend " + backend), 0)
        << err();
    EXPECT_NE(out().find(backend == "nccl" ? "by NCCL 2." : "over TCP"), std::string::npos) << out();
    expect_same_end(backend, "alone", 6);
  }
  ASSERT_EQ(run(0, sft("virtual", 6) + gpu_ + " --actor-num-gpus-per-node 2 --ranks-per-gpu 2"), 0) << err();
  expect_same_end("virtual", "alone", 6);
  ASSERT_EQ(run(0, rl("rl_alone", 3) + gpu_), 0) << err();
  ASSERT_EQ(run(0, rl("rl_two", 3) + gpu_ + " --colocate --actor-num-gpus-per-node 2"), 0) << err();
  expect_same_end("rl_two", "rl_alone", 3);
  const std::string ahead = gpu_ + " --max-staleness 1";
  ASSERT_EQ(run(0, rl("ahead_alone", 4) + ahead), 0) << err();
  ASSERT_EQ(run(0, rl("ahead_two", 4) + ahead + " --actor-num-gpus-per-node 2"), 0) << err();
  expect_same_end("ahead_two", "ahead_alone", 4);
}

}  // namespace
}  // namespace lockstep
