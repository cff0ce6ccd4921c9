#include "kernels/rope.h"

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

std::vector<float> frequencies(int64_t half) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < half; ++i)
    inv_freq.push_back(static_cast<float>(1 / std::pow(10000.0, static_cast<double>(i) / static_cast<double>(half))));
  return inv_freq;
}

std::vector<double> reference(std::vector<double> x, int64_t width, int64_t heads, std::span<const int32_t> positions,
                              const std::vector<float>& inv_freq, double scale) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  for (size_t t = 0; t < positions.size(); ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[i];
        const double c = std::cos(double{angle}) * scale, s = std::sin(double{angle}) * scale;
        double& a = x[t * width + h * 2 * half + i];
        double& b = x[t * width + h * 2 * half + half + i];
        const double low = a * c - b * s, high = b * c + a * s;
        a = low;
        b = high;
      }
  return x;
}

TEST(RopeTest, RotatesTheFirstHeadsAndLeavesTheRest) {
  Stream stream({.threads = 2});
  const std::vector<int32_t> positions = {0, 5, 99, 1, 99};
  for (int64_t half : {1, 3, 8, 20, 32, 64}) {
    constexpr int64_t kHeads = 3;
    const int64_t width = kHeads * 2 * half + 5;
    Matrix x = Matrix::random(5, width, 1, 1.0f, width + 2);
    const RopeTable table = make_rope_table(frequencies(half), 100, 1.25f, stream);
    const auto expected = reference(x.doubles(), width, kHeads, positions, frequencies(half), 1.25);
    const float beyond = x.at(3, width - 5);
    rope(x.tensor(), kHeads, positions, table, +1, stream);
    EXPECT_LT(relative_error(x.doubles(), expected), 3e-7) << half;
    EXPECT_EQ(x.at(3, width - 5), beyond);
  }
}

TEST(RopeTest, BackwardIsTheTransposeOfForward) {
  Stream stream({.threads = 1});
  const std::vector<int32_t> positions = {7, 2};
  Matrix x = Matrix::random(2, 24, 2), dx = Matrix::random(2, 24, 3);
  const RopeTable table = make_rope_table(frequencies(6), 8, 1.0f, stream);
  const auto expected = numeric_gradient(x.doubles(), [&](const std::vector<double>& at) {
    return dot(reference(at, 24, 2, positions, frequencies(6), 1), dx.doubles());
  });
  rope(dx.tensor(), 2, positions, table, -1, stream);
  EXPECT_LT(relative_error(dx.doubles(), expected), 1e-6);
}

TEST(RopeTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    std::vector<int32_t> positions(100);
    for (int32_t t = 0; t < 100; ++t) positions[static_cast<size_t>(t)] = (t * 37) % 64;
    Matrix x = Matrix::random(100, 9 * 80, 4);
    rope(x.tensor(), 9, positions, make_rope_table(frequencies(40), 64, 1.0f, stream), +1, stream);
    return x.values();
  });
}

TEST(RopeTest, RowsDoNotDependOnTheBatch) {
  Stream stream({.threads = 2});
  const std::vector<int32_t> positions = {3, 1, 2};
  const RopeTable table = make_rope_table(frequencies(8), 4, 1.0f, stream);
  Matrix x = Matrix::random(3, 32, 5), all = x;
  rope(all.tensor(), 2, positions, table, +1, stream);
  for (int64_t t = 0; t < 3; ++t)
    rope(x.tensor().rows(t, t + 1), 2, std::span(positions).subspan(static_cast<size_t>(t), 1), table, +1, stream);
  EXPECT_TRUE(same_bits(x.values(), all.values()));
}

TEST(RopeTest, RefusesPositionsOutsideTheTableAndNarrowRows) {
  Stream stream({.threads = 1});
  const RopeTable table = make_rope_table(frequencies(4), 10, 1.0f, stream);
  Matrix x = Matrix::random(1, 16, 6);
  const std::vector<int32_t> last = {9}, beyond = {10}, negative = {-1}, two = {1, 2};
  EXPECT_NO_THROW(rope(x.tensor(), 2, last, table, +1, stream));
  EXPECT_THROW(rope(x.tensor(), 2, beyond, table, +1, stream), ShapeError);
  EXPECT_THROW(rope(x.tensor(), 2, negative, table, +1, stream), ShapeError);
  EXPECT_THROW(rope(x.tensor(), 2, two, table, +1, stream), ShapeError);
  EXPECT_THROW(rope(x.tensor(), 3, last, table, +1, stream), ShapeError);
  EXPECT_THROW(rope(x.tensor(), 2, last, table, 0, stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels
