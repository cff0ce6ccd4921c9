// Products with their norm and SwiGLU inside have the bits of the ops one after the other, on a GPU.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/linear.h"
#include "kernels/op_case.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

class LinearFusedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_ = std::make_unique<Stream>(StreamOptions{.device = Device::cuda});
    bench_ = std::make_unique<Workbench>(*stream_);
  }

  Tensor activations(int64_t rows, int64_t width, uint64_t seed) {
    return bench_->activations(random_values(rows * width, seed), {rows, width});
  }
  Tensor floats(int64_t count, uint64_t seed) { return bench_->f32(random_values(count, seed), {count}); }
  PackedWeight weight(int64_t outputs, int64_t depth) {
    return bench_->weight(random_values(outputs * depth, 1, 0.05f), outputs, depth);
  }
  std::string text(int64_t rows, int64_t outputs, int64_t depth, bool bias) const {
    return std::to_string(rows) + " rows, " + std::to_string(depth) + " -> " + std::to_string(outputs) +
           (bias ? ", bias" : "");
  }
  void expect_same(const ConstTensor& got, const ConstTensor& wanted, const std::string& what) {
    const auto a = bench_->read(got), b = bench_->read(wanted);
    ASSERT_EQ(a.size(), b.size()) << what;
    size_t different = 0;
    for (size_t i = 0; i < a.size(); ++i) different += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
    EXPECT_EQ(different, 0u) << what << ": of " << a.size();
  }

  // Where a product of one row has a kernel of its own, that of nine has not.
  void check_plain(int64_t outputs, int64_t depth) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const Tensor bias = floats(outputs, 3), x = activations(9, depth, 2), residual = activations(9, outputs, 4);
    for (const bool full : {false, true})
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const bool adds = full && dtype == DType::bf16;
        const Tensor all = bench_->arena.alloc({9, outputs}, dtype), one = bench_->arena.alloc({1, outputs}, dtype);
        linear_forward(all, x, w, full ? ConstTensor(bias) : ConstTensor(),
                       adds ? ConstTensor(residual) : ConstTensor(), *stream_);
        for (const int64_t row : {0, 8}) {
          linear_forward(one, x.rows(row, row + 1), w, full ? ConstTensor(bias) : ConstTensor(),
                         adds ? ConstTensor(residual.rows(row, row + 1)) : ConstTensor(), *stream_);
          expect_same(one, all.rows(row, row + 1), "row " + std::to_string(row) + text(1, outputs, depth, full));
        }
      }
  }

  void check_norm(int64_t rows, int64_t outputs, int64_t depth) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const Tensor bias = floats(outputs, 3), norm_weight = floats(depth, 4), x = activations(rows, depth, 2);
    const Tensor norm = activations(rows, depth, 0);
    for (const bool with_bias : {false, true})
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const ConstTensor b = with_bias ? ConstTensor(bias) : ConstTensor();
        const Tensor apart = bench_->arena.alloc({rows, outputs}, dtype);
        const Tensor together = bench_->arena.alloc({rows, outputs}, dtype);
        rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
        linear_forward(apart, norm, w, b, {}, *stream_);
        normed_linear_forward(together, norm, {.x = x, .norm_weight = norm_weight, .norm_eps = 1e-6f}, w, b, *stream_);
        expect_same(together, apart, text(rows, outputs, depth, with_bias));
      }
  }

  void check_swiglu(std::initializer_list<int64_t> batches, int64_t ffn, int64_t depth) {
    const PackedWeight w = weight(2 * ffn, depth);
    for (const int64_t rows : batches) check_swiglu(rows, ffn, depth, w);
  }
  void check_swiglu(int64_t rows, int64_t ffn, int64_t depth, const PackedWeight& w) {
    const Arena::Scope scope(bench_->arena);
    const Tensor bias = floats(2 * ffn, 3), norm_weight = floats(depth, 4), x = activations(rows, depth, 2);
    const Tensor norm = activations(rows, depth, 0), gate_up = activations(rows, 2 * ffn, 0);
    for (const bool with_bias : {false, true})
      for (const bool with_norm : {false, true}) {
        const ConstTensor b = with_bias ? ConstTensor(bias) : ConstTensor();
        const Tensor apart = bench_->poisoned_activations({rows, ffn});
        const Tensor together = bench_->poisoned_activations({rows, ffn});
        if (with_norm) rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
        linear_forward(gate_up, with_norm ? norm : x, w, b, {}, *stream_);
        swiglu_forward(apart, gate_up, *stream_);
        const LinearInput input =
            with_norm ? LinearInput{.x = x, .norm_weight = norm_weight, .norm_eps = 1e-6f} : LinearInput{.x = x};
        normed_swiglu_forward(together, gate_up, norm, input, w, b, *stream_);
        expect_same(together, apart, text(rows, 2 * ffn, depth, with_bias) + (with_norm ? ", norm" : ""));
      }
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Workbench> bench_;
};

// Widths that fill no stage, that have one warp's norm, four, sixteen; outputs that fill no block; what falls back.
// Most are small enough that nobody measures which kernel is fastest.
constexpr int64_t kDepths[] = {64, 192, 1024, 1088, 2560, 4096, 4160, 12288, 16384, 1000, 107};

TEST_F(LinearFusedCuda, OneRow) {
  for (const int64_t depth : kDepths)
    for (const int64_t outputs : {8, 24, 15}) check_plain(outputs, depth);
  for (const int64_t outputs : {1000, 1003, 2560, 4096, 9000, 50008, 50001}) check_plain(outputs, 64);
  check_plain(1024, 3072);
}

TEST_F(LinearFusedCuda, NormInside) {
  for (const int64_t depth : kDepths)
    for (const int64_t outputs : {8, 24, 15}) check_norm(1, outputs, depth);
  for (const int64_t outputs : {1000, 1003, 2560, 4096, 9000, 50008, 50001}) check_norm(1, outputs, 64);
  check_norm(1, 1024, 3072);
  check_norm(3, 1000, 64);
}

TEST_F(LinearFusedCuda, SwigluInside) {
  for (const int64_t depth : kDepths)
    for (const int64_t ffn : {8, 24, 15}) check_swiglu({1, 2, 8, 9, 16, 17, 33, 64, 65}, ffn, depth);
  for (const int64_t ffn : {1000, 1003, 1536, 3072, 4500, 9728}) check_swiglu({1, 8, 16, 31, 64}, ffn, 64);
  check_swiglu({1, 5, 64}, 1536, 1024);
}

}  // namespace
}  // namespace lockstep::kernels::testing
