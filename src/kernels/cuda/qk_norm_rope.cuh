// q/k norm and RoPE of one head of one row, by kLanes neighbouring threads: shared by qk_norm_rope.cu and
// attention_decode_heads.cu, so both give the same bits. Thread i holds elements 8i .. 8i+7 of the lower half and the
// same of the upper half, which are the pairs that rotate together. head_dim is a multiple of 16 up to 16 * kLanes, so
// a thread has all of its elements or none; then they are 0.
#pragma once

#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {

// Threads per head. The order of a head's sums depends on it.
constexpr int head_lanes(int64_t head_dim) {
  return head_dim <= 64 ? 4 : head_dim <= 128 ? 8 : 16;
}

// Sum over the threads of one head; every thread of the warp must call this.
template <int kLanes>
__device__ __forceinline__ float head_sum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

__device__ __forceinline__ float sum_of_products(float sum, const float (&x)[8], const float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], y[i], sum);
  return sum;
}

// 1 / sqrt(mean(x^2) + eps); every thread of the warp must call this.
template <int kLanes>
__device__ __forceinline__ float head_rstd(const float (&a)[8], const float (&b)[8], int head_dim, float eps) {
  const float sum = head_sum<kLanes>(sum_of_products(sum_of_products(0, a, a), b, b));
  const float mean = __fdiv_rn(sum, static_cast<float>(head_dim));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}
__device__ __forceinline__ void scale_head(float (&x)[8], float rstd, const float (&norm)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], rstd), norm[i]);
}

struct Angles {
  float cosine[8] = {}, sine[8] = {};

  // Loads from element `at` of the tables on.
  __device__ void load(const float* cosines, const float* sines, int64_t at) {
    load8(cosine, cosines + at, 8, true);
    load8(sine, sines + at, 8, true);
  }
};

// RoPE: (a, b) -> (a cos - b sin, b cos + a sin); direction -1 is its backward.
__device__ __forceinline__ void rotate(float (&a)[8], float (&b)[8], const Angles& angles, float direction) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float s = __fmul_rn(direction, angles.sine[i]), low = a[i], high = b[i];
    a[i] = __fmaf_rn(low, angles.cosine[i], __fmul_rn(high, -s));
    b[i] = __fmaf_rn(high, angles.cosine[i], __fmul_rn(low, s));
  }
}

}  // namespace lockstep::kernels::cuda
