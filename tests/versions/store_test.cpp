#include "versions/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "rollout/tiny_model.h"

namespace lockstep::versions {
namespace {

using lora::PolicyId;
using Ids = std::vector<PolicyId>;

// Holds what it is told to, and fails where it is told to.
class FakeSink final : public VersionSink {
 public:
  void stage(const Version& version) override {
    if (fail_stage) throw ResourceError({.what = "disk full"});
    if (std::ranges::count(held_, version->policy) > 0) throw ConfigError({.what = "already held"});
    staged_.push_back(version->policy);
  }
  void commit(const PolicyId& policy) override {
    EXPECT_EQ(std::ranges::count(staged_, policy), 1);
    if (fail_commit) throw ResourceError({.what = "gone"});
    std::erase(staged_, policy);
    held_.push_back(policy);
  }
  void abort(const PolicyId& policy) noexcept override { EXPECT_EQ(std::erase(staged_, policy), 1u); }
  void drop(const PolicyId& policy) noexcept override { EXPECT_EQ(std::erase(held_, policy), 1u); }
  Ids held() const override { return held_; }
  const Ids& staged() const { return staged_; }

  bool fail_stage = false, fail_commit = false;

 private:
  Ids staged_, held_;
};

lora::AdapterVersion adapter() {
  static const lora::AdapterVersion one =
      rollout::testing_models::random_adapter(rollout::testing_models::qwen3_config(), 0, 1);
  return one;
}

TEST(Store, NumbersVersionsOfANameWithoutGapsAndKeepsTheNewest) {
  FakeSink sink;
  Store store;
  store.add(sink);
  EXPECT_EQ(store.publish("actor", adapter(), 5).policy, (PolicyId{"actor", 5}));
  EXPECT_EQ(store.publish("actor", adapter()).policy, (PolicyId{"actor", 6}));
  EXPECT_EQ(store.publish("critic", adapter()).policy, (PolicyId{"critic", 0})) << "a name counts for itself";
  EXPECT_EQ(sink.held(), (Ids{{"actor", 6}, {"critic", 0}}));
  EXPECT_THROW(store.publish("actor", adapter(), 6), ConfigError) << "stale";
  EXPECT_THROW(store.publish("actor", adapter(), 2), ConfigError) << "stale";
  EXPECT_THROW(store.publish("critic", adapter(), -1), ConfigError);
  EXPECT_THROW(store.publish("", adapter()), ConfigError);
  EXPECT_THROW(store.add(sink), ConfigError);
  EXPECT_EQ(sink.held(), (Ids{{"actor", 6}, {"critic", 0}}));
}

TEST(Store, EveryNameKeepsAsManyAsItSays) {
  FakeSink sink;
  Store store(2);
  store.add(sink);
  store.set_keep("critic", 3);
  for (int i = 0; i < 5; ++i) store.publish("actor", adapter());
  for (int i = 0; i < 5; ++i) store.publish("critic", adapter());
  EXPECT_EQ(sink.held(), (Ids{{"actor", 3}, {"actor", 4}, {"critic", 2}, {"critic", 3}, {"critic", 4}}));
  EXPECT_EQ(store.find("critic")->versions, (std::vector<int64_t>{2, 3, 4}));
  store.set_keep("critic", 1);
  store.publish("critic", adapter());
  EXPECT_EQ(sink.held(), (Ids{{"actor", 3}, {"actor", 4}, {"critic", 5}}));
  EXPECT_THROW(store.set_keep("critic", 0), ConfigError);
  EXPECT_THROW(Store(0), ConfigError);
  store.drop("actor");
  EXPECT_EQ(sink.held(), (Ids{{"critic", 5}}));
  EXPECT_THROW(store.drop("actor"), NoSuchVersion);
  EXPECT_FALSE(store.find("actor"));
}

TEST(Store, AllSinksOrNone) {
  for (const bool in_stage : {true, false})
    for (int failing = 0; failing < 3; ++failing) {
      FakeSink sinks[3];
      Store store;
      for (FakeSink& sink : sinks) store.add(sink);
      store.publish("actor", adapter());
      (in_stage ? sinks[failing].fail_stage : sinks[failing].fail_commit) = true;
      EXPECT_THROW(store.publish("actor", adapter()), ResourceError);
      for (const FakeSink& sink : sinks) {
        EXPECT_EQ(sink.held(), (Ids{{"actor", 0}})) << in_stage << failing;
        EXPECT_TRUE(sink.staged().empty()) << in_stage << failing;
      }
      EXPECT_EQ(store.find("actor")->versions, std::vector<int64_t>{0});
      sinks[failing].fail_stage = sinks[failing].fail_commit = false;
      EXPECT_EQ(store.publish("actor", adapter()).policy.version, 1) << "the number is not used up";
      for (const FakeSink& sink : sinks) EXPECT_EQ(sink.held(), (Ids{{"actor", 1}}));
    }
}

TEST(Store, ASinkThatComesLateGetsWhatIsThere) {
  Store store(2);
  for (int i = 0; i < 3; ++i) store.publish("actor", adapter());
  store.publish("critic", adapter());
  FakeSink broken, late;
  broken.fail_commit = true;
  EXPECT_THROW(store.add(broken), ResourceError);
  EXPECT_TRUE(broken.held().empty() && broken.staged().empty());
  store.add(late);
  EXPECT_EQ(late.held(), (Ids{{"actor", 1}, {"actor", 2}, {"critic", 0}}));
  store.publish("critic", adapter());
  EXPECT_TRUE(broken.held().empty());
  EXPECT_EQ(late.held().back(), (PolicyId{"critic", 1}));
}

TEST(Store, APinnedVersionStaysInTheSinksAndCanNotBeAskedForAnew) {
  FakeSink sink;
  Store store;
  store.add(sink);
  store.publish("actor", adapter());
  Pin first = store.pin("actor");
  Pin again = store.pin("actor", 0);
  EXPECT_EQ(first.version(), again.version());
  store.publish("actor", adapter());
  EXPECT_EQ(sink.held(), (Ids{{"actor", 0}, {"actor", 1}}));
  EXPECT_EQ(store.find("actor")->versions, std::vector<int64_t>{1});
  EXPECT_THROW(store.pin("actor", 0), NoSuchVersion);
  EXPECT_THROW(store.pin("critic"), NoSuchVersion);
  again = store.pin("actor");
  EXPECT_EQ(again.version()->policy, (PolicyId{"actor", 1}));
  EXPECT_EQ(sink.held().size(), 2u) << "the other pin is still there";
  const Pin moved = std::move(first);
  EXPECT_EQ(sink.held().size(), 2u);
  store.drop("actor");
  EXPECT_EQ(sink.held().size(), 2u) << "both are pinned";
  EXPECT_THROW(store.publish("actor", adapter(), 1), ConfigError) << "one of this number is still in use";
  EXPECT_EQ(store.publish("actor", adapter(), 2).policy.version, 2);
  again = {};
  EXPECT_EQ(sink.held(), (Ids{{"actor", 0}, {"actor", 2}}));
}

TEST(Store, ADroppedVersionIsUsedUntilTheLastHolderIsGone) {
  Store store;
  EXPECT_FALSE(store.used("a"));
  store.publish("a", adapter());
  Version held = store.pin("a").version();
  EXPECT_FALSE(store.used("a")) << "it can still be asked for";
  store.publish("a", adapter());
  EXPECT_TRUE(store.used("a"));
  EXPECT_FALSE(store.used("b"));
  store.drop("a");
  EXPECT_TRUE(store.used("a"));
  for (int i = 0; i < 1000; ++i) store.publish(i % 2 ? "b" : "c", adapter());
  EXPECT_TRUE(store.used("a"));
  EXPECT_FALSE(store.used("b"));
  held.reset();
  EXPECT_FALSE(store.used("a"));
}

TEST(Store, SaysWhatThereIs) {
  Store store(2);
  store.publish("b", adapter(), 3, "/adapters/b");
  store.publish("a", adapter());
  store.publish("b", adapter(), 9, "/adapters/b2");
  const std::vector<Policy> all = store.policies();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "b");
  EXPECT_EQ(all[0].source, "/adapters/b2");
  EXPECT_EQ(all[0].versions, (std::vector<int64_t>{3, 9}));
  EXPECT_EQ(all[0].rank, 3);
  EXPECT_GT(all[0].published_at, 0);
  EXPECT_EQ(all[1].name, "a");
  EXPECT_EQ(all[1].source, "");
}

TEST(Store, ManyThreadsPinAndPublish) {
  FakeSink sink;
  Store store;
  store.add(sink);
  store.publish("a", adapter());
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!over) EXPECT_EQ(store.pin("a").version()->policy.name, "a");
    });
  for (int i = 0; i < 300; ++i) store.publish("a", adapter());
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sink.held(), (Ids{{"a", 300}}));
  EXPECT_FALSE(store.used("a"));
}

}  // namespace
}  // namespace lockstep::versions
