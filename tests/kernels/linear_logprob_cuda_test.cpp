// Log-probs whose logits are never stored: the bits of linear, logprob_forward and logprob_backward.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/device_facts.h"
#include "core/error.h"
#include "kernels/bench_cuda.h"
#include "kernels/linear.h"
#include "kernels/linear_logprob.h"
#include "kernels/logprob.h"

namespace lockstep::kernels::testing {
namespace {

struct Case {
  int64_t rows, vocab, depth;
  float inv_temperature = 1, weight_scale = 0.2f;
  bool entropy = false;
};

class LinearLogprobCuda : public BenchCuda {
 protected:
  void SetUp() override {
    BenchCuda::SetUp();
    if (stream_ && !makes_linear_logprob(256, 64, Device::cuda)) GTEST_SKIP() << "not of compute capability 9.0";
  }
  std::span<const int32_t> targets_of(const Case& c) {
    std::vector<int32_t> targets(static_cast<size_t>(c.rows));
    for (size_t i = 0; i < targets.size(); ++i)
      targets[i] = i % 5 == 3 ? -1 : static_cast<int32_t>(i * 7919 % static_cast<size_t>(c.vocab));
    targets.back() = static_cast<int32_t>(c.vocab - 1);
    return upload(std::span<const int32_t>(targets), bench_->arena, *stream_);
  }
  // NaN is NaN, whatever its bits.
  void expect_same(const ConstTensor& got, const ConstTensor& wanted, const std::string& what) {
    const std::vector<float> a = bench_->read(got), b = bench_->read(wanted);
    ASSERT_EQ(a.size(), b.size()) << what;
    size_t different = 0, first = 0;
    for (size_t i = 0; i < a.size(); ++i)
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i])) &&
          different++ == 0)
        first = i;
    EXPECT_EQ(different, 0u) << what << ": entry " << first << " is " << a[first] << ", wanted " << b[first];
  }

  void check(const Case& c, const PackedWeight& weight, ConstTensor x) {
    const Arena::Scope scope(bench_->arena);
    const std::string what = std::to_string(c.rows) + " rows, " + std::to_string(c.depth) + " -> " +
                             std::to_string(c.vocab) + ", 1/T " + std::to_string(c.inv_temperature) +
                             (c.entropy ? ", entropy" : "");
    const auto targets = targets_of(c);
    const auto column = [&] { return bench_->poisoned_f32({c.rows}); };
    const Tensor logits = bench_->poisoned_f32({c.rows, c.vocab}), lse = column(), logprob = column(),
                 entropy = column();
    linear({.y = logits, .input = {.x = x}, .weight = weight}, *stream_);
    logprob_forward(logprob, entropy, lse, logits, targets, c.inv_temperature, *stream_);

    LinearLogprob call{.x = x,
                       .weight = weight,
                       .targets = targets,
                       .inv_temperature = c.inv_temperature,
                       .logprob = column(),
                       .entropy = c.entropy ? column() : Tensor(),
                       .lse = column(),
                       .target_z = column(),
                       .sums = bench_->poisoned_f32({c.rows, linear_logprob_sums(c.vocab)}),
                       .weights = bench_->poisoned_activations({c.rows, c.vocab})};
    linear_logprob_forward(call, *stream_);
    expect_same(call.logprob, logprob, "log-probs of " + what);
    const std::vector<float> logprobs = bench_->read(logprob);
    bad_rows_ = {};
    for (size_t r = 0; r < logprobs.size(); ++r) bad_rows_[r % 4] += std::isnan(logprobs[r]);
    expect_same(call.lse, lse, "lse of " + what);
    if (c.entropy) expect_same(call.entropy, entropy, "entropies of " + what);

    const Tensor d_logprob = floats(c.rows, 11), d_entropy = c.entropy ? floats(c.rows, 12) : Tensor();
    Tensor d_logits(logits.data, call.weights.dtype, {c.rows, c.vocab});
    d_logits.row_stride = 2 * c.vocab;
    logprob_backward(d_logits, logits, targets, c.inv_temperature, lse, entropy, d_logprob, d_entropy, *stream_);
    linear_logprob_backward({.weights = call.weights,
                             .sums = call.sums,
                             .targets = targets,
                             .inv_temperature = c.inv_temperature,
                             .target_z = call.target_z,
                             .lse = call.lse,
                             .entropy = call.entropy,
                             .d_logprob = d_logprob,
                             .d_entropy = d_entropy},
                            *stream_);
    expect_same(call.weights, d_logits, "gradients of " + what);

    LinearLogprob again = call;  // without the weights
    again.weights = {}, again.logprob = column();
    linear_logprob_forward(again, *stream_);
    expect_same(again.logprob, logprob, "log-probs alone of " + what);
  }
  std::array<int64_t, 4> bad_rows_{};  // of the last check: rows 4 i + r whose log-prob is NaN

  void check(const Case& c) {
    const PackedWeight weight = bench_->weight(random_values(c.vocab * c.depth, 1, c.weight_scale), c.vocab, c.depth);
    check(c, weight, activations(c.rows, c.depth, 2));
  }
};

TEST_F(LinearLogprobCuda, HasTheBitsOfTheOps) {
  for (const bool entropy : {false, true})
    for (const Case& c : {Case{1, 256, 64}, Case{1, 151936, 64}, Case{130, 1000, 64, 1 / 0.7f}, Case{300, 4104, 200},
                          Case{257, 8192, 128, 1, 3.0f}, Case{2049, 12288, 64}}) {
      Case with = c;
      with.entropy = entropy;
      check(with);
    }
}

// Weights below the smallest activation, and rows of one likely token, whose gradient nearly vanishes.
TEST_F(LinearLogprobCuda, HoldsWhereLogitsDifferMuch) {
  check({.rows = 200, .vocab = 5000, .depth = 128, .inv_temperature = 4, .weight_scale = 20, .entropy = true});
}

// Rows whose logits are finite, -infinity in a whole piece, +infinity in one, and NaN.
TEST_F(LinearLogprobCuda, LogitsThatAreNotFinite) {
  const Case c{.rows = 300, .vocab = 1024, .depth = 64, .entropy = true};
  constexpr float kHuge = 3e38f;
  std::vector<float> values = random_values(c.vocab * c.depth, 1, 0.2f), rows = random_values(c.rows * c.depth, 2, 1);
  for (int64_t v = 0; v < c.vocab; ++v) {
    values[static_cast<size_t>(v * c.depth)] = v < 256 ? -kHuge : 0;
    values[static_cast<size_t>(v * c.depth + 1)] = v == 300 ? kHuge : 0;
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    float* const row = &rows[static_cast<size_t>(r * c.depth)];
    row[0] = r % 4 == 1 ? kHuge : 0;
    row[1] = r % 4 == 2 ? kHuge : 0;
    if (r % 4 == 3) row[2] = std::numeric_limits<float>::quiet_NaN();
  }
  check(c, bench_->weight(values, c.vocab, c.depth), bench_->activations(rows, {c.rows, c.depth}));
  EXPECT_EQ(bad_rows_, (std::array<int64_t, 4>{0, 0, 60, 60})) << "rows with a target whose log-prob is not a number";
}

TEST_F(LinearLogprobCuda, RefusesRowsThatAreNotAligned) {
  const PackedWeight weight = bench_->weight(random_values(256 * 64, 1), 256, 64);
  const std::vector<int32_t> wanted = {1, 2};
  const auto column = [&] { return bench_->poisoned_f32({2}); };
  LinearLogprob call{.x = activations(2, 64, 2),
                     .weight = weight,
                     .targets = upload(std::span<const int32_t>(wanted), bench_->arena, *stream_),
                     .logprob = column(),
                     .lse = column(),
                     .target_z = column(),
                     .sums = bench_->poisoned_f32({2, linear_logprob_sums(256)})};
  call.x = activations(2, 68, 2).cols(0, 64);
  EXPECT_THROW(linear_logprob_forward(call, *stream_), ShapeError);
  call.x = activations(2, 64, 2);
  call.weights = bench_->poisoned_activations({2, 260}).cols(0, 256);
  EXPECT_THROW(linear_logprob_forward(call, *stream_), ShapeError);
  call.weights = {};
  call.sums = bench_->poisoned_f32({2, linear_logprob_sums(256) + 1}).cols(0, linear_logprob_sums(256));
  EXPECT_THROW(linear_logprob_forward(call, *stream_), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
