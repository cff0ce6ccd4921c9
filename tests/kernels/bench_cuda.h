// A workbench on a GPU, for tests of its kernels. Without a GPU they skip and say so.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

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
  Tensor floats(int64_t count, uint64_t seed) { return bench_->f32(random_values(count, seed), {count}); }

  std::unique_ptr<lockstep::testing::GpuStream> stream_;
  std::unique_ptr<Workbench> bench_;
};

}  // namespace lockstep::kernels::testing
