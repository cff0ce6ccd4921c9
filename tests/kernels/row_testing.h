// What the tests of the row kernels share: matrices of counted random numbers, streams of every thread count and
// instruction set, numeric gradients of double references.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels::testing {

// An owned f32 tensor; rows may be further apart than they are long.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t stride = 0)
      : rows_(rows),
        cols_(cols),
        stride_(stride ? stride : cols),
        values_(static_cast<size_t>(rows * stride_), -77.0f) {}

  // Uniform in [-scale, scale].
  static Matrix random(int64_t rows, int64_t cols, uint64_t seed, float scale = 1.0f, int64_t stride = 0) {
    Matrix m(rows, cols, stride);
    for (size_t i = 0; i < m.values_.size(); ++i)
      m.values_[i] = scale * (2.0f * uniform01(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 1.0f);
    return m;
  }

  Tensor tensor() {
    Tensor t(values_.data(), DType::f32, {rows_, cols_});
    t.row_stride = stride_;
    return t;
  }
  Tensor flat() { return Tensor(values_.data(), DType::f32, {rows_ * cols_}); }
  Tensor cube(int64_t inner) {
    Tensor t(values_.data(), DType::f32, {rows_, inner, cols_ / inner});
    t.row_stride = stride_;
    return t;
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float& at(int64_t i, int64_t j) { return values_[static_cast<size_t>(i * stride_ + j)]; }
  std::vector<float>& values() { return values_; }
  std::vector<double> doubles() {
    std::vector<double> out;
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t j = 0; j < cols_; ++j) out.push_back(at(i, j));
    return out;
  }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<float> values_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// max |a - b| / max |b|
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i])) return INFINITY;
    worst = std::max(worst, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / std::max(largest, 1e-30);
}

// Central differences of f at x.
inline std::vector<double> numeric_gradient(std::vector<double> x,
                                            const std::function<double(const std::vector<double>&)>& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = f(x);
    x[i] = at - kStep;
    gradient[i] = (above - f(x)) / (2 * kStep);
    x[i] = at;
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The sum of a row as kernels/kernels.h defines it: 16 lanes, each a chain, then 8+8, 4+4, 2+2, 1+1. add(sum, i) is one
// link.
inline float sum_in_lanes(int64_t count, const std::function<float(float, int64_t)>& add) {
  float lane[16] = {};
  for (int64_t i = 0; i < count; ++i) lane[i % 16] = add(lane[i % 16], i);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

// Runs `op` on AVX2 (NEON elsewhere) with 1 thread, then with 2 and 3 threads and on AVX-512, and wants the same bits.
// Skips the test, loudly, after the thread comparison when this machine has no AVX-512.
inline void expect_same_bits_everywhere(const std::function<std::vector<float>(Stream&)>& op) {
  const CpuIsa best = Stream({.threads = 1}).isa();
  const CpuIsa base = best == CpuIsa::neon ? CpuIsa::neon : CpuIsa::avx2;
  Stream one({.threads = 1, .isa = base});
  const std::vector<float> expected = op(one);
  for (float x : expected) ASSERT_TRUE(std::isfinite(x));
  for (int threads : {2, 3}) {
    Stream stream({.threads = threads, .isa = base});
    EXPECT_TRUE(same_bits(op(stream), expected)) << threads << " threads";
  }
  if (best != CpuIsa::avx512) GTEST_SKIP() << "no AVX-512 on this machine: its bits were not compared";
  for (int threads : {1, 3}) {
    Stream stream({.threads = threads, .isa = CpuIsa::avx512});
    EXPECT_TRUE(same_bits(op(stream), expected)) << "AVX-512, " << threads << " threads";
  }
}

}  // namespace lockstep::kernels::testing
