#include "core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/host_mirror.h"

namespace lockstep {
namespace {

bool aligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % 64 == 0;
}

TEST(Buffer, ZeroedAlignedAndMovable) {
  for (size_t bytes : {1u, 63u, 64u, 65u, 100003u}) {
    Buffer buffer(bytes);
    EXPECT_TRUE(aligned(buffer.data()));
    EXPECT_EQ(buffer.bytes(), bytes);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(static_cast<char*>(buffer.data())[i], 0);
    void* const data = buffer.data();
    Buffer other = std::move(buffer);
    EXPECT_EQ(other.data(), data);
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(buffer.bytes(), 0u);
  }
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

TEST(Buffer, AbsurdSizeIsResourceError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator stops the program instead";
#endif
  EXPECT_THROW(Buffer(size_t{1} << 62, Buffer::Fill::none), ResourceError);
}

TEST(Ledger, CountsLiveAndPeak) {
  const int64_t before = live_bytes();
  reset_peak_bytes();
  EXPECT_EQ(peak_bytes(), before);
  {
    Buffer a(1000), b(500);
    EXPECT_EQ(live_bytes(), before + 1500);
    a = Buffer(300);
    EXPECT_EQ(live_bytes(), before + 800);
  }
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(peak_bytes(), before + 1800);
  reset_peak_bytes();
  EXPECT_EQ(peak_bytes(), before);
}

TEST(Buffer, SharedMemoryGoesWithItsLastOwnerAndIsCountedOnce) {
  const int64_t before = live_bytes();
  Buffer second;
  {
    const Buffer first(1000);
    static_cast<char*>(first.data())[999] = 7;
    second = first.share();
    EXPECT_EQ(second.data(), first.data());
    EXPECT_EQ(second.bytes(), 1000u);
    const Buffer third = second.share();
    EXPECT_EQ(live_bytes(), before + 1000);
  }
  EXPECT_EQ(live_bytes(), before + 1000);
  EXPECT_EQ(static_cast<char*>(second.data())[999], 7);
  Region region;
  {
    const Buffer piece = region.take(64);
    second = piece.share();
  }
  EXPECT_EQ(live_bytes(), before + 64);
  std::memset(second.data(), 1, 64);
  second = Buffer().share();
  EXPECT_EQ(second.data(), nullptr);
  EXPECT_EQ(live_bytes(), before);
}

TEST(Ledger, ExactUnderThreads) {
  const int64_t before = live_bytes();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (size_t i = 1; i < 500; ++i) const Buffer buffer(i);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live_bytes(), before);
}

TEST(Arena, ScopeGivesBackAndMemoryIsReused) {
  Arena arena;
  const Tensor kept = arena.alloc({3, 5});
  void* inside = nullptr;
  {
    Arena::Scope scope(arena);
    inside = arena.alloc({100}).data;
    EXPECT_NE(inside, kept.data);
  }
  EXPECT_EQ(arena.alloc({100}).data, inside);
}

TEST(Arena, TensorsDoNotOverlapAcrossChunks) {
  Arena arena;
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < 40; ++i) {
    tensors.push_back(arena.alloc({100, 1 + i * 199}));
    EXPECT_TRUE(aligned(tensors.back().data));
    for (int64_t j = 0; j < tensors.back().elements(); ++j) tensors.back().f32()[j] = static_cast<float>(i);
  }
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t j = 0; j < tensors[i].elements(); ++j) ASSERT_EQ(tensors[i].f32()[j], static_cast<float>(i));
}

TEST(Arena, GrowsOnceAndReleases) {
  Arena arena;
  const auto step = [&] {
    Arena::Scope scope(arena);
    for (int i = 0; i < 8; ++i) arena.alloc({1 << 20});
    arena.alloc({3}, DType::bf16);
    return arena.capacity_bytes();
  };
  const size_t grown = step();
  EXPECT_GE(grown, size_t{32} << 20);
  EXPECT_EQ(step(), grown);
  const int64_t live = live_bytes();
  arena.release();
  EXPECT_EQ(arena.capacity_bytes(), 0u);
  EXPECT_EQ(live_bytes(), live - static_cast<int64_t>(grown));
  EXPECT_EQ(step(), grown);
}

TEST(Arena, EmptyTensorsHaveDistinctMemory) {
  Arena arena;
  EXPECT_NE(arena.alloc({0}).data, arena.alloc({0}).data);
}

TEST(Region, BuffersLieSideBySideAndOutliveIt) {
  const int64_t before = live_bytes();
  std::vector<Buffer> pieces;
  const std::vector<size_t> sizes = {1, 64, 100, 0, size_t{3} << 20, 70, size_t{40} << 20, size_t{8} << 20, 4096};
  {
    Region region;
    for (const size_t bytes : sizes) pieces.push_back(region.take(bytes));
  }
  EXPECT_EQ(static_cast<char*>(pieces[1].data()) - static_cast<char*>(pieces[0].data()), 64);
  EXPECT_EQ(static_cast<char*>(pieces[5].data()) - static_cast<char*>(pieces[4].data()), 3 << 20);
  int64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    ASSERT_EQ(pieces[i].bytes(), sizes[i]);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(pieces[i].data()) % 64, 0u);
    if (sizes[i]) std::memset(pieces[i].data(), static_cast<int>(i) + 1, sizes[i]);
    bytes += static_cast<int64_t>(sizes[i]);
  }
  EXPECT_EQ(live_bytes() - before, bytes);
  pieces.erase(pieces.begin());  // of the first chunk, the others stay
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t at : {size_t{0}, pieces[i].bytes() / 2}) {
      if (pieces[i].bytes() == 0) continue;
      ASSERT_EQ(static_cast<char*>(pieces[i].data())[at], static_cast<char>(i + 2));
    }
  Buffer moved;
  moved = std::move(pieces.back());
  pieces.clear();
  EXPECT_EQ(live_bytes() - before, 4096);
}

TEST(HostMirror, CopiesIntoTheSameMemoryAgain) {
  Stream stream;
  HostMirror mirror;
  Buffer from(1000);
  const auto fill = [&](int value) { std::memset(from.data(), value, from.bytes()); };
  fill(1);
  mirror.copy(from, 900, stream);
  const void* const memory = mirror.memory().data();
  EXPECT_EQ(mirror.memory().bytes(), 900u);
  fill(2);
  EXPECT_EQ(static_cast<const char*>(memory)[899], 1);
  mirror.copy(from, 900, stream);
  EXPECT_EQ(mirror.memory().data(), memory);
  EXPECT_EQ(static_cast<const char*>(memory)[899], 2);
  mirror.copy(from, 1000, stream);
  EXPECT_EQ(std::memcmp(mirror.memory().data(), from.data(), 1000), 0);
  mirror.copy(from, 0, stream);
  EXPECT_EQ(mirror.memory().bytes(), 0u);
}

}  // namespace
}  // namespace lockstep
