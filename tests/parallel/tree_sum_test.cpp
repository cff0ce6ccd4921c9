// tree_sum against the tree written down with scalars.
#include "parallel/tree_sum.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "core/memory.h"
#include "parallel/ranks.h"

namespace lockstep::parallel {
namespace {

using namespace testing;

using Array = std::optional<std::vector<float>>;  // of one rank; nullopt: absent

// Numbers of very different sizes, so that no two orders of adding them agree.
std::vector<float> drawn(uint64_t key, int rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox(key, {static_cast<uint32_t>(rank), static_cast<uint32_t>(i), 1, 0});
    values[static_cast<size_t>(i)] = std::ldexp(2 * uniform01(bits[0]) - 1, static_cast<int>(bits[1] % 24) - 12);
  }
  return values;
}

std::optional<float> join(std::optional<float> a, std::optional<float> b) {
  if (a && b) return *a + *b;
  return a ? a : b;
}

// The tree over ranks begin .. end - 1, where `end - begin` is rounded up to a power of two on the left.
std::optional<float> tree(const std::vector<Array>& ranks, size_t begin, size_t end, size_t i) {
  if (end - begin == 1) return ranks[begin] ? std::optional((*ranks[begin])[i]) : std::nullopt;
  size_t left = 1;
  while (2 * left < end - begin) left *= 2;
  return join(tree(ranks, begin, begin + left, i), tree(ranks, begin + left, end, i));
}

std::optional<float> chain(const std::vector<Array>& ranks, size_t begin, size_t end, size_t i) {
  std::optional<float> sum;
  for (size_t rank = begin; rank < end; ++rank)
    sum = join(sum, ranks[rank] ? std::optional((*ranks[rank])[i]) : std::nullopt);
  return sum;
}

std::vector<float> each(int64_t count, const std::function<std::optional<float>(size_t)>& value) {
  std::vector<float> values;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) values.push_back(value(i).value());
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

ConstTensor view(const std::vector<float>& values) {
  return ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
}

// The sum that every rank gets; into the memory of the partial sum, or another.
std::vector<float> summed(const std::vector<Array>& ranks, int64_t count, bool in_place, uint64_t key) {
  std::vector<std::vector<float>> results(ranks.size());
  on_sound_ranks(static_cast<int>(ranks.size()), [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    Stream stream({.threads = group.rank() % 2 + 1});
    stumble(key, group.rank(), 0);
    std::vector<float> partial = ranks[rank].value_or(std::vector<float>());
    std::vector<float>& result = results[rank];
    result.assign(static_cast<size_t>(count), NAN);
    const Tensor total(in_place && ranks[rank] ? partial.data() : result.data(), DType::f32, {count});
    tree_sum(total, ranks[rank] ? view(partial) : ConstTensor(), group, stream);
    if (in_place && ranks[rank]) {
      result = partial;
    } else if (ranks[rank]) {
      EXPECT_TRUE(same_bits(partial, *ranks[rank])) << "a partial sum was written to";
    }
  });
  for (const std::vector<float>& result : results) EXPECT_TRUE(same_bits(result, results[0])) << "ranks differ";
  return results[0];
}

TEST(TreeSum, IsTheTreeOfScalars) {
  uint64_t key = 0;
  for (const int size : {1, 2, 3, 4, 5, 8, 16})
    for (const int64_t count : {1, 17, 4096, 4097, 50'001}) {
      ++key;
      std::vector<Array> ranks;
      for (int rank = 0; rank < size; ++rank) ranks.emplace_back(drawn(key, rank, count));
      for (int round = 0; round < 2; ++round) {
        const std::vector<float> wanted = each(count, [&](size_t i) { return tree(ranks, 0, ranks.size(), i); });
        EXPECT_TRUE(same_bits(summed(ranks, count, key % 2 == 0, key), wanted)) << size << " ranks, " << count;
        for (int rank = 0; rank < size; ++rank)  // again with some of them absent, though not all
          if (rank != static_cast<int>(key) % size && philox(key, {static_cast<uint32_t>(rank), 0, 2, 0})[0] % 2 == 0)
            ranks[static_cast<size_t>(rank)].reset();
      }
    }
}

// More than one round of slices, the last of them not full.
TEST(TreeSum, ManySlices) {
  const int64_t count = 2 * 64 * 4096 + 3 * 4096 + 5;
  std::vector<Array> ranks = {drawn(1, 0, count), drawn(1, 1, count)};
  const std::vector<float> wanted = each(count, [&](size_t i) { return tree(ranks, 0, 2, i); });
  EXPECT_TRUE(same_bits(summed(ranks, count, true, 1), wanted));
}

// Why a tree: subtrees nest, chains do not, and these numbers show it.
TEST(TreeSum, ATreeOfTreesIsTheTreeAndAChainOfChainsIsNotTheChain) {
  const int64_t count = 10'000;
  std::vector<Array> lanes;
  for (int lane = 0; lane < 8; ++lane) lanes.emplace_back(drawn(9, lane, count));
  const std::vector<float> whole = each(count, [&](size_t i) { return tree(lanes, 0, 8, i); });
  const std::vector<float> whole_chain = each(count, [&](size_t i) { return chain(lanes, 0, 8, i); });
  EXPECT_FALSE(same_bits(whole, whole_chain));
  for (const size_t size : {2, 4}) {
    std::vector<Array> trees, chains;
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t begin = rank * 8 / size, end = (rank + 1) * 8 / size;
      trees.emplace_back(each(count, [&](size_t i) { return tree(lanes, begin, end, i); }));
      chains.emplace_back(each(count, [&](size_t i) { return chain(lanes, begin, end, i); }));
    }
    EXPECT_TRUE(same_bits(summed(trees, count, true, 1), whole)) << size;
    const std::vector<float> of_chains = each(count, [&](size_t i) { return chain(chains, 0, size, i); });
    int64_t different = 0;
    for (size_t i = 0; i < whole.size(); ++i) different += of_chains[i] != whole_chain[i];
    EXPECT_GT(different, count / 10) << size;
    std::printf("  a chain of %zu chains is another number than the chain in %.0f %% of %lld sums\n", size,
                100.0 * static_cast<double>(different) / static_cast<double>(count), static_cast<long long>(count));
  }
}

TEST(TreeSum, WhatIsAbsentIsNotZero) {
  const std::vector<float> minus_zero(5000, -0.0f);
  for (const size_t present : {0, 1, 3}) {
    std::vector<Array> ranks(4);
    ranks[present] = minus_zero;
    EXPECT_TRUE(same_bits(summed(ranks, 5000, false, 1), minus_zero)) << present;
  }
}

TEST(TreeSum, ArraysThatDoNotFitAreRefusedByAll) {
  const auto thrown = on_ranks(4, [](Group& group) {
    Stream stream({.threads = 1});
    std::vector<float> values(group.rank() == 2 ? 7 : 8);
    tree_sum(Tensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())}), view(values), group, stream);
  });
  for (const std::exception_ptr& error : thrown)
    EXPECT_TRUE(starts_with(text_of(error), "ShapeError 5: the ranks add up arrays of different sizes"));
  for (const std::exception_ptr& error : on_ranks(2, [](Group& group) {
         Stream stream({.threads = 1});
         float value = 0;
         tree_sum(Tensor(&value, DType::f32, {1}), ConstTensor(), group, stream);
       }))
    EXPECT_TRUE(starts_with(text_of(error), "ShapeError 5: no rank has a partial sum"));
  Stream stream({.threads = 1});
  float values[2] = {};
  EXPECT_THROW(tree_sum(Tensor(values, DType::f32, {2}), ConstTensor(values, DType::f32, {1}), *solo(), stream),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::parallel
