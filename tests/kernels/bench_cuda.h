// A workbench on a GPU, for tests of its kernels. Without a GPU they skip and say so.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/op_case.h"
#include "support/gpu_stream.h"

namespace lockstep::kernels::testing {

class BenchCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_ = std::make_unique<lockstep::testing::GpuStream>();
    bench_ = std::make_unique<Workbench>(*stream_);
  }

  Tensor activations(int64_t rows, int64_t width, uint64_t seed, float scale = 1) {
    return bench_->activations(random_values(rows * width, seed, scale), {rows, width});
  }
  PackedWeight weight(int64_t outputs, int64_t depth) {
    return bench_->weight(random_values(outputs * depth, 1, 0.05f), outputs, depth);
  }
  Tensor floats(int64_t count, uint64_t seed) { return bench_->f32(random_values(count, seed), {count}); }

  // The bits of two matrices.
  void expect_same(const ConstTensor& got, const ConstTensor& wanted, const std::string& what) {
    const std::vector<float> a = bench_->read(got), b = bench_->read(wanted);
    ASSERT_EQ(a.size(), b.size()) << what;
    size_t different = 0, first = 0;
    for (size_t i = 0; i < a.size(); ++i)
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && different++ == 0) first = i;
    const auto width = static_cast<size_t>(got[1]);
    ASSERT_EQ(different, 0u) << what << ": row " << first / width << ", column " << first % width << " is " << a[first]
                             << ", wanted " << b[first];
  }

  std::unique_ptr<lockstep::testing::GpuStream> stream_;
  std::unique_ptr<Workbench> bench_;
};

}  // namespace lockstep::kernels::testing
