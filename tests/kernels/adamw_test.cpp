#include "kernels/adamw.h"

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

// torch.optim.AdamW in f32, operation by operation (single tensor path).
void torch_step(std::vector<float>& w, std::vector<float>& m, std::vector<float>& v, const std::vector<float>& grad,
                const AdamWStep& s) {
  const double bias1 = 1 - std::pow(s.beta1, double(s.step)), bias2 = 1 - std::pow(s.beta2, double(s.step));
  for (size_t i = 0; i < w.size(); ++i) {
    const float g = grad[i] * s.grad_scale;
    w[i] *= static_cast<float>(1 - s.lr * s.weight_decay);
    m[i] = std::fmaf(static_cast<float>(1 - s.beta1), g - m[i], m[i]);
    v[i] *= static_cast<float>(s.beta2);
    v[i] += static_cast<float>(1 - s.beta2) * g * g;
    const float denominator = std::sqrt(v[i]) / static_cast<float>(std::sqrt(bias2)) + static_cast<float>(s.eps);
    w[i] += static_cast<float>(-(s.lr / bias1)) * m[i] / denominator;
  }
}

struct State {
  Matrix w, m, v;
  explicit State(int64_t n) : w(1, n), m(1, n), v(1, n) {
    for (int64_t i = 0; i < n; ++i) {
      w.at(0, i) = static_cast<float>(i + 1) / 8.0f * (i % 2 ? -1.0f : 1.0f);
      m.at(0, i) = v.at(0, i) = 0.0f;
    }
  }
  void step(Matrix& grad, const AdamWStep& options, Stream& stream) {
    Matrix next(1, w.cols());
    adamw(next.flat(), {}, w.flat(), m.flat(), v.flat(), grad.flat(), options, stream);
    w = next;
  }
};

Matrix exact_grad(int64_t n, int64_t step) {
  Matrix grad(1, n);
  for (int64_t i = 0; i < n; ++i) grad.at(0, i) = static_cast<float>((7 * i + 3 * step) % 11 - 5) / 16.0f;
  return grad;
}

// PyTorch 2.13, CPU: lr = 1e-3 (1 - (t-1)/200), betas 0.9 0.999, eps 1e-8, weight decay 0.01, foreach=False.
TEST(AdamWTest, HundredStepsMatchPyTorch) {
  Stream stream({.threads = 1});
  State state(6);
  for (int64_t step = 1; step <= 100; ++step) {
    Matrix grad = exact_grad(6, step);
    state.step(grad, {.lr = 1e-3 * (1 - static_cast<double>(step - 1) / 200), .step = step}, stream);
  }
  const float w[] = {0x1.00a57ap-3f, -0x1.01552p-2f, 0x1.7c88cap-2f, -0x1.fbf0b8p-2f, 0x1.3ed6eep-1f, -0x1.7f9464p-1f};
  const float m[] = {-0x1.5aebecp-6f, 0x1.cb9dp-6f, -0x1.a3a5ep-7f, 0x1.a9c0ep-8f, 0x1.b982ecp-7f, 0x1.7f35f4p-8f};
  const float v[] = {0x1.e4d3a6p-9f, 0x1.eeb5dp-9f, 0x1.e30044p-9f, 0x1.e73df8p-9f, 0x1.ea3f26p-9f, 0x1.e295e4p-9f};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(state.w.at(0, i), w[i], 1e-6 * std::abs(w[i]));
    EXPECT_NEAR(state.m.at(0, i), m[i], 1e-6 * std::abs(m[i]));
    EXPECT_NEAR(state.v.at(0, i), v[i], 1e-6 * std::abs(v[i]));
  }
}

TEST(AdamWTest, EveryStepHasTheBitsOfPyTorchsOrder) {
  Stream stream({.threads = 2});
  constexpr int64_t kSize = 50003;
  State state(kSize);
  std::vector<float> w = state.w.values(), m = state.m.values(), v = state.v.values();
  for (int64_t step = 1; step <= 20; ++step) {
    Matrix grad = Matrix::random(1, kSize, static_cast<uint64_t>(step), 0.01f);
    const AdamWStep options{
        .lr = 3e-4, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .step = step, .grad_scale = 0.37f};
    state.step(grad, options, stream);
    torch_step(w, m, v, grad.values(), options);
  }
  EXPECT_TRUE(same_bits(state.w.values(), w));
  EXPECT_TRUE(same_bits(state.m.values(), m));
  EXPECT_TRUE(same_bits(state.v.values(), v));
}

TEST(AdamWTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    State state(70001);
    for (int64_t step = 1; step <= 3; ++step) {
      Matrix grad = Matrix::random(1, 70001, static_cast<uint64_t>(step));
      state.step(grad, {.lr = 1e-2, .step = step}, stream);
    }
    return state.w.values();
  });
}

TEST(AdamWTest, RefusesBadArguments) {
  Stream stream({.threads = 1});
  State state(4);
  Matrix next(1, 4), grad(1, 4), shorter(1, 3);
  const auto call = [&](Tensor to, Tensor g, int64_t step) {
    adamw(to, {}, state.w.flat(), state.m.flat(), state.v.flat(), g, {.lr = 1, .step = step}, stream);
  };
  EXPECT_NO_THROW(call(next.flat(), grad.flat(), 1));
  EXPECT_THROW(call(shorter.flat(), grad.flat(), 1), ShapeError);
  EXPECT_THROW(call(next.flat(), shorter.flat(), 1), ShapeError);
  EXPECT_THROW(call(next.tensor(), grad.flat(), 1), ShapeError);
  EXPECT_THROW(call(next.flat(), grad.flat(), 0), ConfigError);
}

TEST(SumOfSquaresTest, MatchesLongDoubleAndIsExactOnIntegers) {
  Stream stream({.threads = 2});
  for (int64_t size : {0, 1, 15, 16, 4095, 4096, 4097, 100001}) {
    Matrix x = Matrix::random(1, size, 3);
    long double sum = 0;
    for (float value : x.values()) sum += static_cast<long double>(value) * value;
    EXPECT_NEAR(sum_of_squares(x.flat(), stream), static_cast<double>(sum), 1e-12 * static_cast<double>(sum)) << size;
    for (int64_t i = 0; i < size; ++i) x.at(0, i) = static_cast<float>(i % 100);
    int64_t integers = 0;
    for (int64_t i = 0; i < size; ++i) integers += (i % 100) * (i % 100);
    EXPECT_EQ(sum_of_squares(x.flat(), stream), static_cast<double>(integers)) << size;
  }
}

TEST(SumOfSquaresTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    Matrix x = Matrix::random(1, 123457, 4);
    const double sum = sum_of_squares(x.flat(), stream);
    const auto high = static_cast<float>(sum);
    return std::vector<float>{high, static_cast<float>(sum - high)};
  });
}

}  // namespace
}  // namespace lockstep::kernels
