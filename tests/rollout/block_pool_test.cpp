#include "rollout/local/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <span>

namespace lockstep::rollout {
namespace {

TEST(BlockPool, RandomTrafficKeepsItsBooks) {
  constexpr int64_t kFloats = 64, kBlocks = 37;
  Stream stream({.threads = 1});
  BlockPool pool(1, kFloats * 4, kBlocks * kFloats * 4 + 3, stream);
  EXPECT_EQ(pool.capacity(), kBlocks);
  std::map<BlockPool::Id, int> references;  // what the pool must know
  std::map<BlockPool::Id, float> contents;
  std::mt19937 random(1);
  bool was_full = false;
  for (int step = 0; step < 20000; ++step) {
    // Drifts between full and empty.
    const bool grow = random() % 1000 < ((step / 2000) % 2 == 0 ? 600u : 400u);
    if (grow && random() % 2) {
      const BlockPool::Id block = pool.acquire();
      if (block == BlockPool::kNone) {
        EXPECT_EQ(references.size(), static_cast<size_t>(kBlocks));
        was_full = true;
        continue;
      }
      EXPECT_EQ(references.count(block), 0u) << "handed out twice";
      references[block] = 1;
      contents[block] = static_cast<float>(step);
      std::fill_n(static_cast<float*>(pool.memory(block)), kFloats, contents[block]);
    } else if (!references.empty()) {
      auto it = references.begin();
      std::advance(it, random() % references.size());
      if (grow) {
        pool.retain(it->first);
        ++it->second;
      } else {
        EXPECT_TRUE(std::all_of(static_cast<float*>(pool.memory(it->first)),
                                static_cast<float*>(pool.memory(it->first)) + kFloats,
                                [&](float x) { return x == contents[it->first]; }));
        pool.release(it->first);
        if (--it->second == 0) references.erase(it);
      }
    }
    ASSERT_EQ(pool.in_use(), static_cast<int64_t>(references.size()));
    ASSERT_EQ(pool.available(), kBlocks - pool.in_use());
  }
  EXPECT_TRUE(was_full);
  for (const auto& [block, n] : references) {
    EXPECT_EQ(pool.references(block), n);
    for (int i = 0; i < n; ++i) pool.release(block);
  }
  EXPECT_EQ(pool.in_use(), 0);
  for (int64_t i = 0; i < kBlocks; ++i) EXPECT_NE(pool.acquire(), BlockPool::kNone);
  EXPECT_EQ(pool.acquire(), BlockPool::kNone);
}

// Layers of a block lie apart, with those of other blocks between them.
TEST(BlockPool, CopiesTheLayersOfOneBlock) {
  constexpr int64_t kLayers = 5, kBytes = 1 << 20, kBlocks = 10;
  Stream stream({.threads = 1});
  BlockPool pool(kLayers, kBytes, kBlocks * kLayers * kBytes, stream);
  EXPECT_EQ(pool.block_bytes(), kLayers * kBytes);
  EXPECT_EQ(pool.capacity(), 8);  // three slabs of three, one of them the spare block: all slabs are alike
  std::vector<BlockPool::Id> ids;
  for (int64_t i = 0; i < pool.capacity(); ++i) ids.push_back(pool.acquire());
  const auto layer = [&](BlockPool::Id id, int64_t l) {
    return std::span(static_cast<char*>(pool.memory(id)) + l * pool.layer_stride(), kBytes);
  };
  const auto value = [](size_t block, int64_t l) { return static_cast<char>(8 * block + static_cast<size_t>(l)); };
  for (size_t i = 0; i < ids.size(); ++i)
    for (int64_t l = 0; l < kLayers; ++l) std::ranges::fill(layer(ids[i], l), value(i, l));
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::span spare(static_cast<char*>(pool.spare_memory()) + l * pool.layer_stride(), kBytes);
    EXPECT_EQ(std::ranges::count(spare, 0), kBytes) << "the spare block was handed out";
    std::ranges::fill(spare, 77);
  }
  pool.copy(ids[7], ids[2]);
  for (size_t i = 0; i < ids.size(); ++i)
    for (int64_t l = 0; l < kLayers; ++l)
      EXPECT_EQ(std::ranges::count(layer(ids[i], l), value(i == 7 ? 2 : i, l)), kBytes) << i << ", layer " << l;
}

// A slab of one block, and the first is the spare one.
TEST(BlockPool, TakesBlocksLargerThanASlab) {
  constexpr int64_t kBytes = int64_t{20} << 20;
  Stream stream({.threads = 1});
  BlockPool pool(1, kBytes, 3 * kBytes, stream);
  EXPECT_EQ(pool.capacity(), 3);
  std::set<void*> places{pool.spare_memory()};
  for (int i = 0; i < 3; ++i) places.insert(pool.memory(pool.acquire()));
  EXPECT_EQ(places.size(), 4u);
  EXPECT_EQ(pool.acquire(), BlockPool::kNone);
}

TEST(BlockPool, GrowsOnDemandAndGivesMemoryBack) {
  const int64_t before = live_bytes();
  Stream stream({.threads = 1});
  BlockPool pool(4, int64_t{1} << 20, int64_t{1} << 40, stream);
  EXPECT_EQ(live_bytes(), before);
  const BlockPool::Id first = pool.acquire();
  const int64_t one_slab = live_bytes() - before;
  EXPECT_GE(one_slab, pool.block_bytes());
  EXPECT_LE(one_slab, int64_t{16} << 20);
  pool.release(first);
  EXPECT_EQ(live_bytes() - before, one_slab);
  pool.release_memory();
  EXPECT_EQ(live_bytes(), before);
  EXPECT_NE(pool.acquire(), BlockPool::kNone);
}

TEST(BlockTable, PopRollsBackWhatWasComputed) {
  Stream stream({.threads = 1});
  BlockPool pool(4, 16, 1 << 20, stream);
  BlockTable table;
  for (int i = 0; i < 3; ++i) table.push(pool, pool.acquire());
  EXPECT_EQ(table.memory()[2], pool.memory(table[2]));
  table.computed = 40;
  pool.release(table.pop());
  EXPECT_EQ(table.computed, 32);
  EXPECT_EQ(table.memory().size(), 2u);
  table.clear(pool);
  EXPECT_EQ(table.computed, 0);
  EXPECT_EQ(pool.in_use(), 0);
}

}  // namespace
}  // namespace lockstep::rollout
