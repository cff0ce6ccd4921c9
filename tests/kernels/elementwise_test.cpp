#include "kernels/elementwise.h"

#include <limits>

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

struct Tokens {
  std::vector<int32_t> sample, position;
  explicit Tokens(int64_t rows) {
    for (int32_t t = 0; t < rows; ++t) {
      sample.push_back(t / 3);
      position.push_back(t % 3 + 10);
    }
  }
  DropoutCounter counter() const {
    return {.key = 0x123456789abcdefull, .step = 4, .module = 9, .sample = sample, .position = position};
  }
};

TEST(AddTest, AddsOverFreeRowStrides) {
  Stream stream({.threads = 2});
  for (int64_t width : {1, 16, 23}) {
    Matrix y = Matrix::random(6, width, 1, 1.0f, width + 3), x = Matrix::random(6, width, 2, 1.0f, width + 1),
           before = y;
    add(y.tensor(), x.tensor(), stream);
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < width; ++j) ASSERT_EQ(y.at(i, j), before.at(i, j) + x.at(i, j));
      ASSERT_EQ(y.at(i, width), before.at(i, width));  // between the rows
    }
  }
}

TEST(AllFiniteTest, FindsOneAmongMany) {
  Stream stream({.threads = 1});
  std::vector<float> values(1001, -3e38f);
  const auto finite = [&] { return all_finite(ConstTensor(values.data(), DType::f32, {1001}), stream); };
  EXPECT_TRUE(finite());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    values.back() = bad;
    EXPECT_FALSE(finite());
  }
  EXPECT_THROW(all_finite(ConstTensor(values.data(), DType::f32, {77, 13}), stream), ShapeError);
}

TEST(AddTest, RefusesOtherShapes) {
  Stream stream({.threads = 1});
  Matrix y(2, 3), x(3, 2);
  EXPECT_THROW(add(y.tensor(), x.tensor(), stream), ShapeError);
  EXPECT_THROW(add(y.flat(), x.flat(), stream), ShapeError);
}

TEST(DropoutTest, MaskIsPhiloxOfTheCounter) {
  Stream stream({.threads = 2});
  constexpr int64_t kRows = 7, kWidth = 90;
  constexpr float kP = 0.3f;
  const Tokens tokens(kRows);
  Matrix x = Matrix::random(kRows, kWidth, 1), y(kRows, kWidth), sum = Matrix::random(kRows, kWidth, 2), before = sum;
  dropout(y.tensor(), x.tensor(), kP, tokens.counter(), false, stream);
  dropout(sum.tensor(), x.tensor(), kP, tokens.counter(), true, stream);
  int dropped = 0;
  for (int64_t t = 0; t < kRows; ++t)
    for (int64_t k = 0; k < kWidth; ++k) {
      const auto bits = philox(tokens.counter().key,
                               {4, static_cast<uint32_t>(tokens.sample[t]), static_cast<uint32_t>(tokens.position[t]),
                                9u << 16 | static_cast<uint32_t>(k / 4)});
      const bool keep = uniform01(bits[k % 4]) >= kP;
      dropped += !keep;
      const float expected = keep ? x.at(t, k) / (1.0f - kP) : 0.0f;
      ASSERT_EQ(y.at(t, k), expected);
      ASSERT_EQ(sum.at(t, k), before.at(t, k) + expected);
    }
  EXPECT_NEAR(dropped / double{kRows * kWidth}, kP, 0.06);
}

TEST(DropoutTest, SameCallIsItsGradient) {
  Stream stream({.threads = 1});
  const Tokens tokens(3);
  Matrix x = Matrix::random(3, 18, 3), dy = Matrix::random(3, 18, 4), ones(3, 18), mask(3, 18), dx(3, 18);
  std::fill(ones.values().begin(), ones.values().end(), 1.0f);
  dropout(mask.tensor(), ones.tensor(), 0.5f, tokens.counter(), false, stream);
  const auto expected = numeric_gradient(x.doubles(), [&](std::vector<double> at) {
    for (size_t i = 0; i < at.size(); ++i) at[i] *= mask.doubles()[i];
    return dot(at, dy.doubles());
  });
  dropout(dx.tensor(), dy.tensor(), 0.5f, tokens.counter(), false, stream);
  EXPECT_LT(relative_error(dx.doubles(), expected), 1e-6);
  dropout(dy.tensor(), dy.tensor(), 0.5f, tokens.counter(), false, stream);  // y may be x
  EXPECT_TRUE(same_bits(dy.values(), dx.values()));
}

TEST(DropoutTest, ATokenKeepsItsMaskInAnyBatchStepsAndModulesDoNot) {
  Stream stream({.threads = 2});
  const Tokens tokens(12);
  Matrix x = Matrix::random(12, 40, 5), y(12, 40), alone(1, 40);
  dropout(y.tensor(), x.tensor(), 0.5f, tokens.counter(), false, stream);
  for (size_t t = 0; t < 12; ++t) {
    DropoutCounter one = tokens.counter();
    one.sample = one.sample.subspan(t, 1);
    one.position = one.position.subspan(t, 1);
    dropout(alone.tensor(), x.tensor().rows(static_cast<int64_t>(t), static_cast<int64_t>(t) + 1), 0.5f, one, false,
            stream);
    EXPECT_TRUE(same_bits(alone.values(), {y.tensor().row(static_cast<int64_t>(t)), 40})) << t;
    for (uint32_t DropoutCounter::*field : {&DropoutCounter::step, &DropoutCounter::module}) {
      DropoutCounter other = one;
      ++(other.*field);
      dropout(alone.tensor(), x.tensor().rows(static_cast<int64_t>(t), static_cast<int64_t>(t) + 1), 0.5f, other, false,
              stream);
      EXPECT_FALSE(same_bits(alone.values(), {y.tensor().row(static_cast<int64_t>(t)), 40})) << t;
    }
  }
}

TEST(DropoutTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    const Tokens tokens(50);
    Matrix x = Matrix::random(50, 1000, 6), y = Matrix::random(50, 1000, 7);
    dropout(y.tensor(), x.tensor(), 0.1f, tokens.counter(), true, stream);
    add(y.tensor(), x.tensor(), stream);
    return y.values();
  });
}

TEST(DropoutTest, ProbabilityZeroKeepsEverything) {
  Stream stream({.threads = 1});
  const Tokens tokens(4);
  Matrix x = Matrix::random(4, 10, 8), y(4, 10);
  dropout(y.tensor(), x.tensor(), 0.0f, tokens.counter(), false, stream);
  EXPECT_TRUE(same_bits(y.values(), x.values()));
}

TEST(DropoutTest, RefusesBadArguments) {
  Stream stream({.threads = 1});
  const Tokens tokens(4), fewer(3);
  Matrix x(4, 10), y(4, 10), other(4, 9);
  EXPECT_THROW(dropout(other.tensor(), x.tensor(), 0.5f, tokens.counter(), false, stream), ShapeError);
  EXPECT_THROW(dropout(y.tensor(), x.tensor(), 0.5f, fewer.counter(), false, stream), ShapeError);
  EXPECT_THROW(dropout(y.tensor(), x.tensor(), 1.0f, tokens.counter(), false, stream), ConfigError);
  EXPECT_THROW(dropout(y.tensor(), x.tensor(), -0.1f, tokens.counter(), false, stream), ConfigError);
  DropoutCounter wide = tokens.counter();
  wide.module = 65536;
  EXPECT_THROW(dropout(y.tensor(), x.tensor(), 0.5f, wide, false, stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels
