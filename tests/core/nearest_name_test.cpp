#include "core/nearest_name.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(NearestName, CountsEdits) {
  EXPECT_EQ(nearest_name("--eval-intreval", {"--eval-config", "--eval-interval"}), "--eval-interval");
  EXPECT_EQ(nearest_name("trian", {"sft", "train"}), "train");
  EXPECT_EQ(nearest_name("ab", {"ba", "abc", "ab"}), "ab");
}

TEST(NearestName, IsNearWhenItMayBeASlip) {
  EXPECT_TRUE(is_near("generat", "generate"));
  EXPECT_TRUE(is_near("sfd", "sft"));
  EXPECT_FALSE(is_near("frobnicate", "generate"));
  EXPECT_FALSE(is_near("", "sft"));
  EXPECT_FALSE(is_near(std::string(100000, 'x'), "serve"));
}

TEST(NearestName, IsAlwaysGiven) {
  EXPECT_EQ(nearest_name("--lr", {"--lora", "--load"}), "--lora");  // the first of equals is as good as any
  EXPECT_EQ(nearest_name("zzzzzz", {"q_proj"}), "q_proj");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), {"a", "x"}), "x");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace lockstep
