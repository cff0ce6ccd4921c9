#include "rollout/local/prefix_cache.h"

#include <gtest/gtest.h>

namespace lockstep::rollout {
namespace {

using Version = std::shared_ptr<const lora::AdapterVersion>;

TEST(PrefixCache, EveryVersionOnEveryBaseHasARootOfItsOwn) {
  Stream stream({.threads = 1});
  BlockPool pool(1, 64, 1 << 16, stream);
  PrefixCache cache(pool);
  const Version first = std::make_shared<lora::AdapterVersion>(lora::AdapterVersion{.policy = {"a", 1}});
  const Version twin = std::make_shared<lora::AdapterVersion>(*first);
  std::vector<PrefixCache::Node> roots;
  for (const lora::BaseVersion base : {lora::BaseVersion{0}, lora::BaseVersion{1}})
    for (const Version& adapter : {Version(), first, twin}) {
      roots.push_back(cache.root(base, adapter));
      EXPECT_EQ(cache.root(base, adapter), roots.back());
      for (size_t i = 0; i + 1 < roots.size(); ++i) EXPECT_NE(roots[i], roots.back());
    }
}

TEST(PrefixCache, BlocksOfOneBaseAreNotFoundForAnother) {
  Stream stream({.threads = 1});
  BlockPool pool(1, 64, 1 << 16, stream);
  PrefixCache cache(pool);
  const std::vector<int32_t> tokens(32, 7);
  BlockTable table;
  for (int i = 0; i < 2; ++i) table.push(pool, pool.acquire());
  table.computed = 32;
  cache.insert(cache.root({0}, nullptr), tokens, table);
  table.clear(pool);
  for (const auto& [base, found] : {std::pair{0, 32}, {1, 0}}) {
    BlockTable again;
    cache.find(cache.root({base}, nullptr), tokens, 32, again);
    EXPECT_EQ(again.computed, found) << "base " << base;
    again.clear(pool);
  }
}

TEST(PrefixCache, AVersionThatIsGoneIsNotFoundAgain) {
  Stream stream({.threads = 1});
  BlockPool pool(1, 64, 1 << 16, stream);
  PrefixCache cache(pool);
  auto adapter = std::make_shared<const lora::AdapterVersion>(lora::AdapterVersion{.policy = {"a", 1}});
  const PrefixCache::Node root = cache.root({}, adapter);
  adapter = std::make_shared<const lora::AdapterVersion>(lora::AdapterVersion{.policy = {"a", 1}});
  EXPECT_NE(cache.root({}, adapter), root);
}

}  // namespace
}  // namespace lockstep::rollout
