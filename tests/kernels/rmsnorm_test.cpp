#include "kernels/rmsnorm.h"

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

constexpr float kEps = 1e-5f;

std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& weight, int64_t width) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
    for (int64_t i = 0; i < width; ++i) y[row + i] = x[row + i] * rstd * weight[i];
  }
  return y;
}

TEST(RmsNormTest, MatchesReferenceForEveryWidth) {
  Stream stream({.threads = 1});
  for (int64_t width : {1, 2, 15, 16, 17, 64, 100, 576}) {
    Matrix x = Matrix::random(5, width, 1, 3.0f, width + 3), y(5, width), rstd(1, 5),
           weight = Matrix::random(1, width, 2);
    rmsnorm_forward(y.tensor(), rstd.flat(), x.tensor(), weight.flat(), kEps, stream);
    EXPECT_LT(relative_error(y.doubles(), reference(x.doubles(), weight.doubles(), width)), 5e-7) << width;
  }
}

TEST(RmsNormTest, SumsInSixteenLanes) {
  Stream stream({.threads = 1});
  for (int64_t width : {5, 16, 64, 93, 576}) {
    Matrix x = Matrix::random(1, width, 20), y(1, width), rstd(1, 1), weight = Matrix::random(1, width, 21);
    rmsnorm_forward(y.tensor(), rstd.flat(), x.tensor(), weight.flat(), kEps, stream);
    const float squares =
        sum_in_lanes(width, [&](float sum, int64_t i) { return std::fmaf(x.at(0, i), x.at(0, i), sum); });
    const float expected = 1.0f / std::sqrt(squares / static_cast<float>(width) + kEps);
    EXPECT_EQ(rstd.at(0, 0), expected) << width;
    for (int64_t i = 0; i < width; ++i) ASSERT_EQ(y.at(0, i), x.at(0, i) * expected * weight.at(0, i)) << width;
  }
}

TEST(RmsNormTest, InPlaceAndPerHeadViewsGiveTheSameBits) {
  Stream stream({.threads = 2});
  constexpr int64_t kTokens = 7, kHeads = 3, kHeadDim = 20;
  Matrix x = Matrix::random(kTokens, kHeads * kHeadDim, 3), weight = Matrix::random(1, kHeadDim, 4);
  Matrix as_rows(kTokens * kHeads, kHeadDim), rstd_rows(1, kTokens * kHeads);
  rmsnorm_forward(as_rows.tensor(), rstd_rows.flat(),
                  Tensor(x.values().data(), DType::f32, {kTokens * kHeads, kHeadDim}), weight.flat(), kEps, stream);

  // The same heads as part of wider rows, in place.
  Matrix wide(kTokens, kHeads * kHeadDim, 100), rstd(1, kTokens * kHeads);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kHeads * kHeadDim; ++i) wide.at(t, i) = x.at(t, i);
  rmsnorm_forward(wide.cube(kHeads), rstd.flat(), wide.cube(kHeads), weight.flat(), kEps, stream);
  EXPECT_EQ(wide.doubles(), as_rows.doubles());
  EXPECT_TRUE(same_bits(rstd.values(), rstd_rows.values()));
  EXPECT_EQ(wide.values()[60], -77.0f);  // between the rows
}

TEST(RmsNormTest, RowsDoNotDependOnTheBatch) {
  Stream stream({.threads = 2});
  constexpr int64_t kRows = 70, kWidth = 576;
  Matrix x = Matrix::random(kRows, kWidth, 5), y(kRows, kWidth), alone(1, kWidth),
         weight = Matrix::random(1, kWidth, 6);
  rmsnorm_forward(y.tensor(), {}, x.tensor(), weight.flat(), kEps, stream);
  for (int64_t t = 0; t < kRows; ++t) {
    rmsnorm_forward(alone.tensor(), {}, x.tensor().rows(t, t + 1), weight.flat(), kEps, stream);
    ASSERT_TRUE(same_bits(alone.values(), {y.tensor().row(t), static_cast<size_t>(kWidth)})) << t;
  }
}

TEST(RmsNormTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    constexpr int64_t kRows = 64, kWidth = 1003;
    Matrix x = Matrix::random(kRows, kWidth, 7), y(kRows, kWidth), weight = Matrix::random(1, kWidth, 8),
           rstd(1, kRows);
    Matrix dx = Matrix::random(kRows, kWidth, 9), dy = Matrix::random(kRows, kWidth, 10);
    rmsnorm_forward(y.tensor(), rstd.flat(), x.tensor(), weight.flat(), kEps, stream);
    rmsnorm_backward(dx.tensor(), dy.tensor(), x.tensor(), weight.flat(), rstd.flat(), true, stream);
    std::vector<float> all = y.values();
    all.insert(all.end(), dx.values().begin(), dx.values().end());
    return all;
  });
}

TEST(RmsNormTest, GradientMatchesFiniteDifferences) {
  Stream stream({.threads = 1});
  for (int64_t width : {3, 16, 37}) {
    Matrix x = Matrix::random(3, width, 11), weight = Matrix::random(1, width, 12), rstd(1, 3), y(3, width);
    Matrix dy = Matrix::random(3, width, 13), dx(3, width);
    rmsnorm_forward(y.tensor(), rstd.flat(), x.tensor(), weight.flat(), kEps, stream);
    const auto expected = numeric_gradient(x.doubles(), [&](const std::vector<double>& at) {
      return dot(reference(at, weight.doubles(), width), dy.doubles());
    });
    rmsnorm_backward(dx.tensor(), dy.tensor(), x.tensor(), weight.flat(), rstd.flat(), false, stream);
    EXPECT_LT(relative_error(dx.doubles(), expected), 2e-6) << width;

    Matrix sum = Matrix::random(3, width, 14);
    std::vector<double> continued = sum.doubles();
    for (size_t i = 0; i < continued.size(); ++i) continued[i] += expected[i];
    rmsnorm_backward(sum.tensor(), dy.tensor(), x.tensor(), weight.flat(), rstd.flat(), true, stream);
    EXPECT_LT(relative_error(sum.doubles(), continued), 2e-6) << width;

    rmsnorm_backward(dy.tensor(), dy.tensor(), x.tensor(), weight.flat(), rstd.flat(), false, stream);
    EXPECT_TRUE(same_bits(dy.values(), dx.values())) << width;
  }
}

TEST(RmsNormTest, RefusesOtherShapes) {
  Stream stream({.threads = 1});
  Matrix x(4, 8), y(4, 8), narrow(4, 7), weight(1, 8), rstd(1, 4), wrong(1, 5);
  EXPECT_THROW(rmsnorm_forward(narrow.tensor(), {}, x.tensor(), weight.flat(), kEps, stream), ShapeError);
  EXPECT_THROW(rmsnorm_forward(y.tensor(), wrong.flat(), x.tensor(), weight.flat(), kEps, stream), ShapeError);
  EXPECT_THROW(rmsnorm_forward(y.tensor(), {}, x.flat(), weight.flat(), kEps, stream), ShapeError);
  EXPECT_THROW(rmsnorm_forward(y.tensor(), {}, x.tensor(), wrong.flat(), kEps, stream), ShapeError);
  EXPECT_THROW(rmsnorm_backward(y.tensor(), x.tensor(), x.tensor(), weight.flat(), wrong.flat(), false, stream),
               ShapeError);
  Tensor bf16 = x.tensor();
  bf16.dtype = DType::bf16;
  EXPECT_THROW(rmsnorm_forward(y.tensor(), {}, bf16, weight.flat(), kEps, stream), DTypeError);
}

}  // namespace
}  // namespace lockstep::kernels
