// Lanes of samples, and the tree that adds them up, against scalars.
#include "train/gradient_lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "parallel/ranks.h"
#include "parallel/tree_sum.h"

namespace lockstep::train {
namespace {

using parallel::testing::on_sound_ranks;

std::vector<int> lanes_of_samples(int64_t num_samples, int lanes = kGradientLanes) {
  std::vector<int> all;
  for (int64_t i = 0; i < num_samples; ++i) all.push_back(lane_of(i, num_samples, lanes));
  return all;
}

TEST(LaneRange, SamplesOfALane) {
  EXPECT_EQ(lanes_of_samples(1), (std::vector<int>{7}));
  EXPECT_EQ(lanes_of_samples(3), (std::vector<int>{2, 5, 7}));
  EXPECT_EQ(lanes_of_samples(8), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(lanes_of_samples(11), (std::vector<int>{0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 7}));
  EXPECT_EQ(lanes_of_samples(16), (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
  EXPECT_EQ(lanes_of_samples(3, 16), (std::vector<int>{5, 10, 15}));
}

// Every sample has one rank, that of its lane.
TEST(LaneRange, RanksShareLanesAndSamples) {
  for (const int lanes : {8, 16, 64})
    for (int ranks = 1; ranks <= lanes; ranks *= 2) {
      std::vector<LaneRange> ranges(static_cast<size_t>(ranks));
      on_sound_ranks(
          ranks, [&](parallel::Group& group) { ranges[static_cast<size_t>(group.rank())] = lanes_of(group, lanes); });
      EXPECT_EQ(ranges.front().begin, 0);
      EXPECT_EQ(ranges.back().end, lanes);
      for (const int64_t num_samples : {1, 7, 8, 9, 24, 1000}) {
        const std::vector<int> of_sample = lanes_of_samples(num_samples, lanes);
        int64_t next = 0;
        for (const LaneRange& range : ranges) {
          EXPECT_EQ(range.size() * ranks, lanes);
          const SampleRange samples = samples_of(range, num_samples);
          EXPECT_EQ(samples.begin, next);
          for (next = samples.begin; next < samples.end; ++next) {
            const int lane = of_sample[static_cast<size_t>(next)];
            EXPECT_TRUE(range.begin <= lane && lane < range.end);
          }
        }
        EXPECT_EQ(next, num_samples);
      }
    }
}

TEST(LaneRange, ImpossibleSharesAreRefused) {
  on_sound_ranks(3, [](parallel::Group& group) { EXPECT_THROW(lanes_of(group), ConfigError); });
  on_sound_ranks(16, [](parallel::Group& group) {
    EXPECT_THROW(lanes_of(group), ConfigError);
    EXPECT_EQ(lanes_of(group, 16).size(), 1);
  });
  for (const int lanes : {-8, 0, 1, 4, 12, 128}) EXPECT_THROW(lanes_of(*parallel::solo(), lanes), ConfigError);
}

// What sample i adds to element k.
float value(int64_t i, int64_t k) {
  const auto bits = philox(77, {static_cast<uint32_t>(i), static_cast<uint32_t>(k), 0, 0});
  return std::ldexp(2 * uniform01(bits[0]) - 1, static_cast<int>(bits[1] % 24) - 12);
}

std::optional<float> join(std::optional<float> a, std::optional<float> b) {
  if (a && b) return *a + *b;
  return a ? a : b;
}

// Sums of the lanes begin .. end - 1 of a step, in element k.
struct Scalars {
  int64_t num_samples = 0;
  int lanes = kGradientLanes;

  std::optional<float> lane(int g, int64_t k) const {
    std::optional<float> sum;
    for (int64_t i = g * num_samples / lanes; i < (g + 1) * num_samples / lanes; ++i)
      sum = sum.value_or(0.0f) + value(i, k);
    return sum;
  }
  std::optional<float> tree(int begin, int end, int64_t k) const {
    if (end - begin == 1) return lane(begin, k);
    const int middle = (begin + end) / 2;
    return join(tree(begin, middle, k), tree(middle, end, k));
  }
  std::optional<float> chain(int begin, int end, int64_t k) const {
    std::optional<float> sum;
    for (int g = begin; g < end; ++g) sum = join(sum, lane(g, k));
    return sum;
  }
  std::optional<float> chain_of_chains(int ranks, int64_t k) const {
    std::optional<float> sum;
    for (int rank = 0; rank < ranks; ++rank)
      sum = join(sum, chain(rank * lanes / ranks, (rank + 1) * lanes / ranks, k));
    return sum;
  }
};

constexpr int64_t kFloats = 5000;  // a full row of the kernel and a rest

// The samples of a range in steps of `batch` samples, each in its lane before the batch is consumed.
void fill(GradientLanes& lanes, const SampleRange& samples, int64_t num_samples, int64_t batch) {
  lanes.begin(num_samples);
  for (int64_t first = samples.begin; first < samples.end; first += batch) {
    const int64_t end = std::min(first + batch, samples.end);
    for (int64_t i = first; i < end; ++i) {
      float* lane = lanes.lane(i);
      for (int64_t k = 0; k < kFloats; ++k) lane[k] += value(i, k);
    }
    lanes.consumed(end);
  }
}

std::vector<float> values_of(const ConstTensor& tensor) {
  return {tensor.f32(), tensor.f32() + tensor.elements()};
}

TEST(GradientLanes, TheirSumIsTheTree) {
  Stream stream({.threads = 2});
  for (const int lanes : {8, 16}) {
    GradientLanes sums(kFloats, {.begin = 0, .end = lanes, .of = lanes}, stream);
    for (const int64_t num_samples : {1, 2, 3, 5, 7, 8, 9, 11, 24})
      for (const int64_t batch : {1, 4, 24}) {
        fill(sums, {0, num_samples}, num_samples, batch);
        const std::vector<float> got = values_of(sums.total());
        const Scalars scalars{num_samples, lanes};
        for (int64_t k = 0; k < kFloats; ++k)
          ASSERT_EQ(got[static_cast<size_t>(k)], scalars.tree(0, lanes, k).value()) << num_samples << " by " << batch;
      }
  }
}

// The point of the tree: partial sums of ranks, added up, are the sum of one process. On the same numbers chains are
// another sum for every number of ranks, so a chain anywhere in between would be seen.
TEST(GradientLanes, SumsOfRanksAreTheSumOfOne) {
  for (const int64_t num_samples : {1, 3, 7, 8, 9, 24}) {
    const Scalars scalars{num_samples};
    for (const int ranks : {2, 4, 8}) {
      on_sound_ranks(ranks, [&](parallel::Group& group) {
        Stream stream({.threads = 1});
        const LaneRange range = lanes_of(group);
        GradientLanes sums(kFloats, range, stream);
        for (int round = 0; round < 2; ++round) {
          fill(sums, samples_of(range, num_samples), num_samples, 3);
          EXPECT_EQ(sums.partial().empty(), samples_of(range, num_samples).size() == 0);
          const Tensor total = sums.total();
          parallel::tree_sum(total, sums.partial(), group, stream);
          for (int64_t k = 0; k < kFloats; ++k) ASSERT_EQ(total.f32()[k], scalars.tree(0, 8, k).value()) << k;
        }
      });
      int64_t different = 0, from_tree = 0;
      for (int64_t k = 0; k < kFloats; ++k) {
        different += scalars.chain_of_chains(ranks, k) != scalars.chain(0, 8, k);
        from_tree += scalars.tree(0, 8, k) != scalars.chain(0, 8, k);
      }
      if (num_samples >= 8) {
        EXPECT_GT(from_tree, kFloats / 10);
        EXPECT_TRUE(ranks == 8 || different > kFloats / 10) << ranks << " ranks";
      }
    }
  }
}

TEST(GradientLanes, FewAreAliveAtOnce) {
  EXPECT_EQ(lane_buffers(1), 4);  // three partial sums and the open lane
  EXPECT_EQ(lane_buffers(2), 4);
  EXPECT_EQ(lane_buffers(8), 8);
  EXPECT_EQ(lane_buffers(2, 1), 1);
  EXPECT_EQ(lane_buffers(2, 64), 7);
  Stream stream({.threads = 1});
  const int64_t num_samples = 64, bytes = kFloats * static_cast<int64_t>(sizeof(float));
  for (const int64_t lanes_at_once : {1, 2, 3, 8}) {
    const int64_t before = live_bytes();
    GradientLanes lanes(kFloats, {}, stream);
    reset_peak_bytes();
    fill(lanes, {0, num_samples}, num_samples, lanes_at_once * num_samples / kGradientLanes);
    EXPECT_LE(peak_bytes() - before, lane_buffers(lanes_at_once) * (bytes + 4096)) << lanes_at_once;
    EXPECT_GT(peak_bytes() - before, (lane_buffers(lanes_at_once) - 1) * bytes) << lanes_at_once;
    EXPECT_EQ(lanes.total().data, lanes.partial().data);
  }
}

}  // namespace
}  // namespace lockstep::train
