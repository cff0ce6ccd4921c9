// Sums over ranks on a GPU have the bits of those on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/transfer.h"
#include "parallel/add_pieces.h"
#include "parallel/ranks.h"
#include "parallel/tree_sum.h"

namespace lockstep::parallel {
namespace {

using namespace testing;

class TreeSumCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
  static std::vector<float> drawn(int rank, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      const auto bits = philox(3, {static_cast<uint32_t>(rank), static_cast<uint32_t>(i), 1, 0});
      values[i] = std::ldexp(2 * uniform01(bits[0]) - 1, static_cast<int>(bits[1] % 24) - 12);
      if (i % 97 == 0) values[i] = -0.0f;
    }
    return values;
  }
};

// The sum of the ranks' pieces as rank 1 forms it, on the stream's device.
std::vector<float> added(const std::vector<std::vector<float>>& ranks, const std::vector<bool>& present,
                         Stream& stream) {
  const auto count = static_cast<int64_t>(ranks[0].size());
  const int64_t stride = (count + cpu::kBlock - 1) / cpu::kBlock * cpu::kBlock;
  std::vector<float> all(static_cast<size_t>(stride) * ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    std::ranges::copy(ranks[rank], all.begin() + static_cast<ptrdiff_t>(rank) * stride);
  const Buffer pieces = device_copy(all.data(), all.size() * sizeof(float), stream),
               own = device_copy(ranks[1].data(), ranks[1].size() * sizeof(float), stream);
  Buffer out(ranks[1].size() * sizeof(float), Buffer::Fill::zero, stream.device());
  add_pieces(out.f32(), count, {.all = pieces.f32(), .stride = stride, .own = own.f32(), .rank = 1, .present = present},
             stream);
  std::vector<float> sum(ranks[0].size());
  download(sum.data(), out.data(), out.bytes(), stream);
  return sum;
}

TEST_F(TreeSumCuda, TheKernelAddsInTheOrderOfTheTree) {
  Stream gpu({.threads = 1, .device = Device::cuda}), cpu({.threads = 2});
  for (const size_t size : {2, 3, 4, 7, 8, 16, 64}) {
    std::vector<std::vector<float>> ranks;
    for (size_t rank = 0; rank < size; ++rank) ranks.push_back(drawn(static_cast<int>(rank), 10'001));
    for (int missing = 0; missing < 4; ++missing) {
      std::vector<bool> present(size, true);
      for (size_t rank = 0; rank < size; ++rank)
        if (missing > 0) present[rank] = (rank * 7 + static_cast<size_t>(missing)) % 3 != 0;
      if (std::ranges::find(present, true) == present.end()) continue;
      const std::vector<float> wanted = added(ranks, present, cpu), got = added(ranks, present, gpu);
      EXPECT_EQ(std::memcmp(wanted.data(), got.data(), wanted.size() * sizeof(float)), 0)
          << size << " ranks, pattern " << missing;
    }
  }
}

TEST_F(TreeSumCuda, RanksThatShareAGpuSumThroughHostMemory) {
  constexpr size_t kCount = 300'001;
  for (const int size : {2, 4, 8}) {
    std::vector<std::vector<float>> sums[2];
    for (const Device device : {Device::cpu, Device::cuda}) {
      auto& all = sums[device == Device::cpu ? 0 : 1];
      all.resize(static_cast<size_t>(size));
      on_sound_ranks(size, [&](Group& group) {
        Stream stream({.threads = 1, .device = device});
        const std::vector<float> mine = drawn(group.rank(), kCount);
        const Buffer partial = device_copy(mine.data(), kCount * sizeof(float), stream);
        const Tensor view(partial.data(), DType::f32, {static_cast<int64_t>(kCount)});
        tree_sum(view, view, group, stream);
        auto& sum = all[static_cast<size_t>(group.rank())];
        sum.resize(kCount);
        download(sum.data(), partial.data(), kCount * sizeof(float), stream);
      });
    }
    for (size_t rank = 0; rank < sums[1].size(); ++rank)
      EXPECT_EQ(std::memcmp(sums[1][rank].data(), sums[0][0].data(), kCount * sizeof(float)), 0) << size;
  }
}

}  // namespace
}  // namespace lockstep::parallel
