#include "kernels/value_head.h"

#include "kernels/row_testing.h"
#include "support/temp_directory.h"

namespace lockstep::kernels {
namespace {

using testing::Matrix;

// Rows further apart than they are long, and no whole number of vectors.
struct Case {
  Matrix x = Matrix::random(40, 77, 1, 1, 80), weight = Matrix::random(1, 77, 2), dv = Matrix::random(1, 40, 3);
  float bias = 0.25f;

  Tensor bias_tensor() { return Tensor(&bias, DType::f32, {1}); }
};

TEST(ValueHead, IsTheDotProductOfARowAndItsGradient) {
  Case c;
  Stream stream({.threads = 2});
  std::vector<float> v(40), d_weight(77, 0.5f);
  const Tensor values(v.data(), DType::f32, {40});
  value_head_forward(values, c.x.tensor(), c.weight.flat(), c.bias_tensor(), stream);
  Matrix dx(40, 77, 79);
  value_head_backward(dx.tensor(), c.dv.flat(), c.weight.flat(), stream);
  float d_bias = 2;
  value_head_gradient(Tensor(d_weight.data(), DType::f32, {77}), Tensor(&d_bias, DType::f32, {1}), c.dv.flat(),
                      c.x.tensor(), stream);
  double bias_sum = 2;
  std::vector<double> sums(77, 0.5);
  for (int64_t n = 0; n < 40; ++n) {
    double dot = c.bias;
    for (int64_t i = 0; i < 77; ++i) {
      dot += double(c.x.at(n, i)) * c.weight.at(0, i);
      sums[static_cast<size_t>(i)] += double(c.x.at(n, i)) * c.dv.at(0, n);
      EXPECT_EQ(dx.at(n, i), c.dv.at(0, n) * c.weight.at(0, i));
    }
    bias_sum += c.dv.at(0, n);
    EXPECT_NEAR(v[static_cast<size_t>(n)], dot, 1e-5);
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(d_weight[i], sums[i], 1e-5);
  EXPECT_NEAR(d_bias, bias_sum, 1e-5);
}

// Whatever rows share a call, however the sum is cut into calls, on any instruction set and number of threads.
TEST(ValueHead, BitsDependOnNothingElse) {
  std::vector<float> wanted_v, wanted_d;
  for (const CpuIsa isa : {CpuIsa::best, CpuIsa::avx2})
    for (const int64_t step : {40, 7, 1}) {
      Case c;
      Stream stream({.threads = step == 7 ? 2 : 1, .isa = isa});
      std::vector<float> v(40), d(78, 0.1f);
      for (int64_t begin = 0; begin < 40; begin += step) {
        const int64_t end = std::min<int64_t>(40, begin + step);
        const Tensor x = c.x.tensor().rows(begin, end), dv(c.dv.values().data() + begin, DType::f32, {end - begin});
        value_head_forward(Tensor(v.data() + begin, DType::f32, {end - begin}), x, c.weight.flat(), c.bias_tensor(),
                           stream);
        value_head_gradient(Tensor(d.data(), DType::f32, {77}), Tensor(d.data() + 77, DType::f32, {1}), dv, x, stream);
      }
      if (wanted_v.empty()) wanted_v = v, wanted_d = d;
      EXPECT_EQ(v, wanted_v) << step;
      EXPECT_EQ(d, wanted_d) << step;
    }
}

TEST(ValueHead, RefusesOtherShapes) {
  Case c;
  Stream stream({.threads = 1});
  std::vector<float> v(40);
  const Tensor values(v.data(), DType::f32, {40}), few(v.data(), DType::f32, {39});
  using lockstep::testing::expect_error;
  expect_error<ShapeError>([&] { value_head_forward(few, c.x.tensor(), c.weight.flat(), c.bias_tensor(), stream); },
                           {"value_head_forward", "x"});
  expect_error<ShapeError>([&] { value_head_forward(values, c.x.tensor(), few, c.bias_tensor(), stream); },
                           {"value_head_forward"});
  expect_error<ShapeError>([&] { value_head_forward(values, c.x.tensor(), c.weight.flat(), few, stream); }, {"bias"});
  expect_error<DTypeError>(
      [&] { value_head_backward(c.x.tensor(), Tensor(v.data(), DType::bf16, {40}), c.weight.flat(), stream); }, {"v"});
}

}  // namespace
}  // namespace lockstep::kernels
