#include "server/http/byte_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep::server {
namespace {

TEST(ByteBudget, SharesAreTakenAndGivenBack) {
  const ByteBudget budget(100);
  const auto first = budget.share();
  {
    const auto second = budget.share();
    EXPECT_TRUE(first->take(60));
    EXPECT_TRUE(second->take(40));
    EXPECT_FALSE(second->take(1));
    EXPECT_TRUE(second->take(0));
    EXPECT_EQ(second->bytes(), 40u);
    EXPECT_EQ(budget.used(), 100u);
  }
  EXPECT_EQ(budget.used(), 60u);
  first->become(20);
  EXPECT_EQ(budget.used(), 20u);
}

TEST(ByteBudget, APartOfItIsForSomePurposes) {
  const ByteBudget budget(100);
  const auto first = budget.share(), second = budget.share();
  EXPECT_TRUE(first->take(40));
  EXPECT_FALSE(second->take(20, 0.5));
  EXPECT_TRUE(second->take(20, 0.75));
}

TEST(ByteBudget, WhoIsAloneMayTakeAnything) {
  const ByteBudget budget(100);
  const auto first = budget.share(), second = budget.share();
  EXPECT_TRUE(first->take(1000));
  EXPECT_TRUE(first->take(1000, 0.5));
  EXPECT_FALSE(second->take(1));
}

TEST(ByteBudget, ManyThreadsNeverTakeMoreThanThereIs) {
  const ByteBudget budget(1000);
  const auto holder = budget.share();
  ASSERT_TRUE(holder->take(1));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        const auto share = budget.share();
        while (share->take(90)) EXPECT_LE(budget.used(), 1000u);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 1u);
}

// An answer may be on its way when the server is gone.
TEST(ByteBudget, SharesOutliveIt) {
  std::shared_ptr<ByteBudget::Share> share;
  {
    const ByteBudget budget(100);
    share = budget.share();
    EXPECT_TRUE(share->take(10));
  }
  share.reset();
}

}  // namespace
}  // namespace lockstep::server
