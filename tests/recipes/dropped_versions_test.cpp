#include "recipes/dropped_versions.h"

#include <gtest/gtest.h>

namespace lockstep::recipes {
namespace {

using Version = DroppedVersions::Version;

Version version(int64_t number) {
  return std::make_shared<const lora::AdapterVersion>(lora::AdapterVersion{.version = number});
}

TEST(DroppedVersions, AreUsedUntilTheLastHolderIsGone) {
  DroppedVersions dropped;
  EXPECT_FALSE(dropped.used("a"));
  std::vector<Version> held = {version(1), version(2)};
  dropped.add("a", held);
  EXPECT_TRUE(dropped.used("a"));
  EXPECT_FALSE(dropped.used("b"));
  held.pop_back();
  dropped.add("b", std::vector{held[0]});
  EXPECT_TRUE(dropped.used("a")) << "the other one";
  EXPECT_TRUE(dropped.used("b"));
  held.clear();
  EXPECT_FALSE(dropped.used("a"));
  EXPECT_FALSE(dropped.used("b"));
}

TEST(DroppedVersions, LoadingAgainAndAgainDoesNotGrow) {
  DroppedVersions dropped;
  const Version kept = version(0);
  dropped.add("b", std::vector{kept});
  for (int64_t i = 1; i <= 10'000; ++i) dropped.add(i % 2 ? "a" : "c", std::vector{version(i)});
  EXPECT_LE(dropped.size(), 2u) << "the one in use, and the last, which nobody has looked at since";
  EXPECT_TRUE(dropped.used("b"));
}

}  // namespace
}  // namespace lockstep::recipes
