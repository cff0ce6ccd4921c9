// Layouts that a training command is asked for: it starts its ranks itself, and again after one is lost.
#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

class Layout : public Job {};

constexpr int kSteps = 30;

TEST_F(Layout, ACommandStartsTheRanksThatItIsAskedFor) {
  ASSERT_EQ(run(0, sft("alone", 4)), 0) << err();
  ASSERT_EQ(run(0, sft("part", 4) + " --actor-num-nodes 1 --actor-num-gpus-per-node 4"), 0) << err();
  EXPECT_NE(out().find("[0] base "), std::string::npos) << out();
  expect_same_end("part", "alone", 4);
  ASSERT_EQ(run(0, rl("rl_alone", 2)), 0) << err();
  ASSERT_EQ(run(0, rl("rl_part", 2) + " --colocate --actor-num-gpus-per-node 2"), 0) << err();
  expect_same_end("rl_part", "rl_alone", 2);
}

TEST_F(Layout, ALauncherHasToStartAsManyAsAreAskedFor) {
  EXPECT_EQ(run(2, sft("part", 2) + " --actor-num-gpus-per-node 4"), 2);
  EXPECT_NE(err().find("another number of ranks than the layout asks for"), std::string::npos) << err();
  EXPECT_EQ(run(2, sft("part", 2) + " --actor-num-gpus-per-node 2"), 0) << err();
}

TEST_F(Layout, AJobIsStartedAgainWhenARankIsLost) {
  ASSERT_EQ(run(0, sft("alone", kSteps)), 0) << err();
  start(0, sft("part", kSteps) + " --actor-num-gpus-per-node 2 --use-fault-tolerance");
  ASSERT_TRUE(reaches("part", 4)) << err();
  ASSERT_EQ(ranks().size(), 2u);
  ::kill(ranks()[1], SIGKILL);
  EXPECT_EQ(finish(), 0) << err();
  EXPECT_NE(err().find("exit code 137 and is started again (1 of 3)"), std::string::npos) << err();
  expect_same_end("part", "alone", kSteps);
}

TEST_F(Layout, WhatTheCommandSaysIsNotTriedAgain) {
  EXPECT_EQ(run(2, sft("part", 2) + " --no-such-flag", "--restarts 2"), 2);
  EXPECT_EQ(err().find("started again"), std::string::npos) << err();
  EXPECT_EQ(run(2, "-- sh -c 'kill -9 $$'", "--restarts 2"), 137);
  EXPECT_NE(err().find("(2 of 2)"), std::string::npos) << err();
}

}  // namespace
}  // namespace lockstep
