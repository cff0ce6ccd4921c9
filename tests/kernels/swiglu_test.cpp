#include "kernels/swiglu.h"

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

std::vector<double> reference(const std::vector<double>& gate_up, int64_t width) {
  std::vector<double> y;
  for (size_t row = 0; row < gate_up.size(); row += static_cast<size_t>(2 * width))
    for (int64_t i = 0; i < width; ++i) {
      const double z = gate_up[row + i];
      y.push_back(z / (1 + std::exp(-z)) * gate_up[row + width + i]);
    }
  return y;
}

TEST(SwigluTest, MatchesReferenceForEveryWidth) {
  Stream stream({.threads = 1});
  for (int64_t width : {1, 7, 16, 33, 1536}) {
    Matrix gate_up = Matrix::random(3, 2 * width, 1, 20.0f, 2 * width + 1), y(3, width, width + 4);
    swiglu_forward(y.tensor(), gate_up.tensor(), stream);
    EXPECT_LT(relative_error(y.doubles(), reference(gate_up.doubles(), width)), 5e-7) << width;
  }
}

TEST(SwigluTest, ExtremeGatesStayFinite) {
  Stream stream({.threads = 1});
  Matrix gate_up(1, 12), y(1, 6), d(1, 12), dy(1, 6);
  const float gates[] = {-1e30f, -200.0f, -88.5f, 88.5f, 200.0f, 0.0f};
  for (int64_t i = 0; i < 6; ++i) {
    gate_up.at(0, i) = gates[i];
    gate_up.at(0, 6 + i) = 1.0f;
    dy.at(0, i) = 1.0f;
  }
  swiglu_forward(y.tensor(), gate_up.tensor(), stream);
  swiglu_backward(d.tensor(), dy.tensor(), gate_up.tensor(), stream);
  const float expected[] = {0.0f, 0.0f, 0.0f, 88.5f, 200.0f, 0.0f}, slopes[] = {0.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.5f};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(y.at(0, i), expected[i], 1e-30f) << gates[i];
    EXPECT_NEAR(d.at(0, i), slopes[i], 1e-30f) << gates[i];
    EXPECT_NEAR(d.at(0, 6 + i), expected[i], 1e-30f) << gates[i];
  }
}

TEST(SwigluTest, GradientMatchesFiniteDifferencesAndMayOverwriteItsInput) {
  Stream stream({.threads = 1});
  for (int64_t width : {5, 16, 21}) {
    Matrix gate_up = Matrix::random(3, 2 * width, 2, 4.0f), dy = Matrix::random(3, width, 3), d(3, 2 * width);
    const auto expected = numeric_gradient(
        gate_up.doubles(), [&](const std::vector<double>& at) { return dot(reference(at, width), dy.doubles()); });
    swiglu_backward(d.tensor(), dy.tensor(), gate_up.tensor(), stream);
    EXPECT_LT(relative_error(d.doubles(), expected), 2e-6) << width;
    swiglu_backward(gate_up.tensor(), dy.tensor(), gate_up.tensor(), stream);
    EXPECT_TRUE(same_bits(gate_up.values(), d.values())) << width;
  }
}

TEST(SwigluTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    constexpr int64_t kRows = 40, kWidth = 1001;
    Matrix gate_up = Matrix::random(kRows, 2 * kWidth, 4, 10.0f), y(kRows, kWidth);
    Matrix dy = Matrix::random(kRows, kWidth, 5), d(kRows, 2 * kWidth);
    swiglu_forward(y.tensor(), gate_up.tensor(), stream);
    swiglu_backward(d.tensor(), dy.tensor(), gate_up.tensor(), stream);
    std::vector<float> all = y.values();
    all.insert(all.end(), d.values().begin(), d.values().end());
    return all;
  });
}

TEST(SwigluTest, RowsDoNotDependOnTheBatch) {
  Stream stream({.threads = 2});
  Matrix gate_up = Matrix::random(50, 2 * 600, 6, 5.0f), y(50, 600), alone(1, 600);
  swiglu_forward(y.tensor(), gate_up.tensor(), stream);
  for (int64_t t : {0, 27, 49}) {
    swiglu_forward(alone.tensor(), gate_up.tensor().rows(t, t + 1), stream);
    EXPECT_TRUE(same_bits(alone.values(), {y.tensor().row(t), 600}));
  }
}

TEST(SwigluTest, RefusesOtherShapes) {
  Stream stream({.threads = 1});
  Matrix gate_up(2, 8), y(2, 4), wrong(2, 5), more(3, 4);
  EXPECT_THROW(swiglu_forward(wrong.tensor(), gate_up.tensor(), stream), ShapeError);
  EXPECT_THROW(swiglu_forward(more.tensor(), gate_up.tensor(), stream), ShapeError);
  EXPECT_THROW(swiglu_backward(y.tensor(), y.tensor(), gate_up.tensor(), stream), ShapeError);
  EXPECT_THROW(swiglu_backward(gate_up.tensor(), wrong.tensor(), gate_up.tensor(), stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels
