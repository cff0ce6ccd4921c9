#include "lora/init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "lora/decompose.h"
#include "lora/fixture.h"
#include "support/temp_directory.h"

namespace lockstep::lora {
namespace {

using lockstep::testing::expect_error;

std::shared_ptr<const AdapterLayout> layout_of(const std::string& init, int64_t rank = 16,
                                               std::vector<std::string> targets = {"all-linear"}) {
  LoraConfig config = tiny_config(LoraType::canonical, std::move(targets));
  config.rank = rank;
  config.init = *lora_init_of(init);
  config.subtracts_initial = config.init.changes_base();
  return resolve_layout(config, whole_modules());
}

struct Moments {
  double mean = 0, variance = 0, largest = 0;
};
Moments moments(const float* values, int64_t count) {
  Moments m;
  for (int64_t i = 0; i < count; ++i) {
    m.mean += values[i] / static_cast<double>(count);
    m.largest = std::max(m.largest, std::fabs(static_cast<double>(values[i])));
  }
  for (int64_t i = 0; i < count; ++i) m.variance += std::pow(values[i] - m.mean, 2) / static_cast<double>(count);
  return m;
}
Moments moments_a(const Pair& pair, const Buffer& flat) {
  return moments(flat.f32() + pair.a_offset, pair.in * pair.rank);
}
Moments moments_b(const Pair& pair, const Buffer& flat) {
  return moments(flat.f32() + pair.b_offset, pair.rank * pair.out);
}

TEST(Init, GaussianHasDeviationOneOverRank) {
  const auto layout = layout_of("gaussian");
  const Buffer flat = initial_weights(*layout, 5);
  for (const Pair& pair : layout->pairs) {
    const Moments a = moments_a(pair, flat);
    EXPECT_NEAR(a.mean, 0, 0.02);
    EXPECT_NEAR(a.variance * 16 * 16, 1, 0.35) << pair.module().name;
    EXPECT_GT(a.largest * 16, 2) << "normal, not uniform";
    EXPECT_EQ(moments_b(pair, flat).largest, 0);
  }
}

// As torch.nn.Linear: uniform in +-1/sqrt(inputs) on both sides.
TEST(Init, FalseMakesBothFactorsAsLinearLayersAre) {
  const auto layout = layout_of("false");
  const Buffer flat = initial_weights(*layout, 5);
  for (const Pair& pair : layout->pairs) {
    const double bound_a = 1 / std::sqrt(pair.in), bound_b = 1 / std::sqrt(pair.rank);
    EXPECT_LE(moments_a(pair, flat).largest, bound_a + 1e-6);
    EXPECT_LE(moments_b(pair, flat).largest, bound_b + 1e-6);
    EXPECT_NEAR(moments_b(pair, flat).variance, bound_b * bound_b / 3, bound_b * bound_b * 0.1);
  }
}

TEST(Init, OfTheEmbeddingFalseIsNormalOnBothSides) {
  const auto layout = layout_of("false", 16, {"embed_tokens"});
  const Buffer flat = initial_weights(*layout, 5);
  EXPECT_NEAR(moments_a(layout->pairs[0], flat).variance, 1, 0.3);
  EXPECT_NEAR(moments_b(layout->pairs[0], flat).variance, 1, 0.3);
}

TEST(Init, OrthogonalFactorsCancelEachOther) {
  const auto layout = layout_of("orthogonal");
  const Buffer flat = initial_weights(*layout, 5);
  for (const Pair& pair : layout->pairs) {
    const float *const a = flat.f32() + pair.a_offset, *const b = flat.f32() + pair.b_offset;
    for (int64_t row = 0; row < pair.out; ++row)
      for (int64_t col = 0; col < pair.in; ++col) {
        double sum = 0;
        for (int64_t k = 0; k < pair.rank; ++k) sum += a[col * pair.rank + k] * b[k * pair.out + row];
        ASSERT_NEAR(sum, 0, 1e-6);
      }
    // Rows of Q have norm 1, so an element of X Q_odd has the variance of rank / 2 normals over rank.
    EXPECT_NEAR(moments_a(pair, flat).variance, 0.01 / 2, 0.002);
    EXPECT_NEAR(moments_b(pair, flat).variance, 0.01 / 2, 0.002);
  }
}

TEST(Init, RefusesWhatAModuleCannotHave) {
  expect_error<ConfigError>([] { require_possible_init(*layout_of("orthogonal", 3)); }, {"even rank", "3"});
  for (const char* init : {"orthogonal", "pissa", "olora"})
    expect_error<ConfigError>([&] { require_possible_init(*layout_of(init, 4, {"embed_tokens"})); },
                              {"embed_tokens", init, "modules_to_save"});
  expect_error<ConfigError>([] { require_possible_init(*layout_of("pissa", 30, {"q_proj"})); },
                            {"rank 30", "[32, 24]", "q_proj"});
  for (const char* init : {"true", "orthogonal", "pissa"}) EXPECT_NO_THROW(require_possible_init(*layout_of(init, 8)));
}

// U diag(values) V^T with orthonormal columns, from a wave that any two columns of are orthogonal.
std::vector<float> matrix_of(const std::vector<double>& values, int64_t rows, int64_t cols) {
  const auto wave = [](int64_t i, size_t k, int64_t n) {
    return std::sqrt(2.0 / static_cast<double>(n)) *
           std::cos(M_PI * (static_cast<double>(i) + 0.5) * (static_cast<double>(k) + 1) / static_cast<double>(n));
  };
  std::vector<float> matrix(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (size_t k = 0; k < values.size(); ++k) sum += values[k] * wave(i, k, rows) * wave(j, k, cols);
      matrix[static_cast<size_t>(i * cols + j)] = static_cast<float>(sum);
    }
  return matrix;
}

std::vector<double> matmul(const MatrixFactors& f, int64_t rows, int64_t cols) {
  const int64_t rank = static_cast<int64_t>(f.left.size()) / rows;
  std::vector<double> result(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < rank; ++k)
      for (int64_t j = 0; j < cols; ++j)
        result[static_cast<size_t>(i * cols + j)] +=
            static_cast<double>(f.left[static_cast<size_t>(i * rank + k)]) * f.right[static_cast<size_t>(k * cols + j)];
  return result;
}

class LargestPart : public ::testing::TestWithParam<std::optional<int64_t>> {};

TEST_P(LargestPart, IsTheSumOfTheLargestSingularVectors) {
  const std::vector<double> values = {9, 7, 5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{40, 24}, {24, 40}}) {
    const std::vector<float> w = matrix_of(values, rows, cols),
                             wanted = matrix_of({values.begin(), values.begin() + 3}, rows, cols);
    const MatrixFactors part = largest_singular_part(ConstTensor(w.data(), DType::f32, {rows, cols}), 3, GetParam(), 7);
    const std::vector<double> got = matmul(part, rows, cols);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5) << i;
    for (int64_t k = 0; k < 3; ++k) {  // sqrt(S) on either side
      double left = 0, right = 0;
      for (int64_t i = 0; i < rows; ++i) left += std::pow(part.left[static_cast<size_t>(i * 3 + k)], 2);
      for (int64_t j = 0; j < cols; ++j) right += std::pow(part.right[static_cast<size_t>(k * cols + j)], 2);
      EXPECT_NEAR(left, values[static_cast<size_t>(k)], 1e-4);
      EXPECT_NEAR(right, values[static_cast<size_t>(k)], 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Iterations, LargestPart, ::testing::Values(std::nullopt, 1, 4),
                         [](const auto& info) { return info.param ? "niter" + std::to_string(*info.param) : "exact"; });

TEST(LeadingQr, ReproducesTheFirstColumns) {
  const std::vector<float> w = matrix_of({3, 2, 1, 0.7, 0.6, 0.5, 0.4}, 20, 12);
  const MatrixFactors qr = leading_qr(ConstTensor(w.data(), DType::f32, {20, 12}), 4);
  const std::vector<double> product = matmul(qr, 20, 12);
  for (int64_t i = 0; i < 20; ++i)
    for (int64_t j = 0; j < 4; ++j)
      EXPECT_NEAR(product[static_cast<size_t>(i * 12 + j)], w[static_cast<size_t>(i * 12 + j)], 1e-5);
  for (int64_t k = 0; k < 4; ++k)
    for (int64_t l = 0; l < 4; ++l) {  // Q's columns are orthonormal, and R is triangular
      double sum = 0;
      for (int64_t i = 0; i < 20; ++i)
        sum += qr.left[static_cast<size_t>(i * 4 + k)] * qr.left[static_cast<size_t>(i * 4 + l)];
      EXPECT_NEAR(sum, k == l, 1e-5);
      if (l < k) {
        EXPECT_NEAR(qr.right[static_cast<size_t>(k * 12 + l)], 0, 1e-5);
      }
    }
}

// A and B come with their copies, and scale B A is the part that is trained, whatever the scale.
TEST(Init, PissaTakesTheLargestPartAtTheAdaptersScale) {
  const auto layout = layout_of("pissa", 3, {"q_proj"});
  const Pair& pair = layout->pairs[0];
  const std::vector<float> w = matrix_of({5, 4, 3, 0.1}, pair.out, pair.in),
                           wanted = matrix_of({5, 4, 3}, pair.out, pair.in);
  Buffer flat = initial_weights(*layout, 1);
  begin_with_base(*layout, pair, ConstTensor(w.data(), DType::f32, {pair.out, pair.in}), 1, flat);
  ASSERT_NE(pair.scale, 1);
  for (int64_t i = 0; i < pair.out; ++i)
    for (int64_t j = 0; j < pair.in; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < 3; ++k)
        sum += flat.f32()[pair.a_offset + j * 3 + k] * flat.f32()[pair.b_offset + k * pair.out + i];
      ASSERT_NEAR(pair.scale * sum, wanted[static_cast<size_t>(i * pair.in + j)], 2e-5);
    }
  const auto same = [&](int64_t x, int64_t y, int64_t count) {
    return std::memcmp(flat.f32() + x, flat.f32() + y, static_cast<size_t>(count) * sizeof(float)) == 0;
  };
  EXPECT_TRUE(same(pair.a_offset, pair.a0_offset, pair.in * 3));
  EXPECT_TRUE(same(pair.b_offset, pair.b0_offset, pair.out * 3));
}

}  // namespace
}  // namespace lockstep::lora
