// Difficulty pools in a run.
#include "recipes/prompt_order.h"

#include <gtest/gtest.h>

#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

class Pools : public Training {
 protected:
  RlOptions options(const std::string& save) {
    RlOptions o = rl(save);
    o.prompt_data = kArith + "/train.jsonl@[0:10]";
    o.num_rollout = 6;
    o.difficulty = {.easy = 0.6, .hard = 0.0, .hard_fraction = 0.25};
    return o;
  }
};

TEST_F(Pools, AResumedRunReadsThePromptsOfTheUninterruptedOne) {
  run_rl(options("whole"), control_);
  RlOptions part = options("part");
  part.num_rollout = 3;
  run_rl(part, control_);
  part.num_rollout = 6;
  part.save.load = part.save.save;
  run_rl(part, control_);
  EXPECT_EQ(adapter_bytes("whole", 6), adapter_bytes("part", 6));
  const auto whole = metrics("whole"), resumed = metrics("part");
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i]["samples"], resumed[i]["samples"]) << i;
    EXPECT_EQ(whole[i]["difficulty/easy"], resumed[i]["difficulty/easy"]) << i;
    EXPECT_EQ(whole[i]["difficulty/easy"].get<int64_t>() + whole[i]["difficulty/normal"].get<int64_t>() +
                  whole[i]["difficulty/hard"].get<int64_t>(),
              10);
  }
  EXPECT_LT(whole.back()["difficulty/normal"], 10);
  RlOptions plain = options("plain");
  plain.difficulty = {};
  run_rl(plain, control_);
  EXPECT_NE(metrics("plain").back()["samples"], whole.back()["samples"]);
  EXPECT_FALSE(metrics("plain").back().contains("difficulty/easy"));
  part.difficulty.hard_fraction = 0;
  expect_error<ConfigError>([&] { run_rl(part, control_); }, {"--hard-fraction"});
}

TEST_F(Pools, NothingIsSampledAheadOfThem) {
  RlOptions o = options("ahead");
  o.staleness.max_staleness = 1;
  expect_error<ConfigError>([&] { run_rl(o, control_); }, {"difficulty pools", "sampled ahead"});
}

// With groups that are dropped the pools learn from those, too, and nothing is read twice.
TEST_F(Pools, DroppedGroupsCount) {
  RlOptions o = options("dropped");
  o.need_spread = true;
  o.over_sampling = 6;
  o.max_filter_rounds = 100;
  o.rollout_batch_size = 2;
  o.num_rollout = 3;
  run_rl(o, control_);
  const Json last = metrics("dropped").back();
  EXPECT_GT(last["difficulty/easy"].get<int64_t>() + last["difficulty/hard"].get<int64_t>(), 0);
}

}  // namespace
}  // namespace lockstep::recipes
