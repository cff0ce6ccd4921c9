// q/k norm and RoPE of one head of one row, by kLanes neighbouring threads: shared by qk_norm_rope.cu,
// linear_tiles_heads.cuh and attention_decode_heads.cu, so all give the same bits. Thread i holds elements 8i .. 8i+7
// of the lower half and the same of the upper half, which are the pairs that rotate together. head_dim is a multiple of
// 16 up to 16 * kLanes, so a thread has all of its elements or none; then they are 0.
#pragma once

#include "kernels/cuda/rmsnorm.cuh"

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
  return rstd_of(head_sum<kLanes>(sum_of_products(sum_of_products(0, a, a), b, b)), head_dim, eps);
}
// The same of two heads whose kLanes threads are kStride lanes apart, given each thread's part of both sums. One half
// of the threads completes the first sum and the other half the second one, in the order of head_sum.
template <int kLanes, int kStride = 1>
__device__ __forceinline__ void two_rstds(float (&rstd)[2], const float (&sum)[2], int head_dim, float eps) {
  constexpr int kApart = kLanes / 2 * kStride;
  const bool second = threadIdx.x & kApart;
  const float kept = second ? sum[1] : sum[0], given = second ? sum[0] : sum[1];
  float x = __fadd_rn(kept, __shfl_xor_sync(~0u, given, kApart));
#pragma unroll
  for (int offset = kApart / 2; offset >= kStride; offset /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, offset));
  const float mine = rstd_of(x, head_dim, eps), other = __shfl_xor_sync(~0u, mine, kApart);
  rstd[0] = second ? other : mine, rstd[1] = second ? mine : other;
}
// The same of as many heads as one has threads: neighbouring ones, of which thread i completes the i-th sum.
template <int kLanes>
__device__ __forceinline__ void many_rstds(float (&rstd)[kLanes], const float (&sum)[kLanes], int head_dim, float eps) {
  float part[kLanes];
#pragma unroll
  for (int i = 0; i < kLanes; ++i) part[i] = sum[i];
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    const bool second = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < apart; ++i) {
      const float kept = second ? part[i + apart] : part[i], given = second ? part[i] : part[i + apart];
      part[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, given, apart));
    }
  }
  const float mine = rstd_of(part[0], head_dim, eps);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) rstd[i] = __shfl_sync(~0u, mine, i, kLanes);
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

// RoPE: (a, b) -> (a cos - b sin, b cos + a sin); kBackward rotates by the negative angle.
template <bool kBackward = false>
__device__ __forceinline__ void rotate(float (&a)[8], float (&b)[8], const Angles& angles) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float s = kBackward ? -angles.sine[i] : angles.sine[i], low = a[i], high = b[i];
    a[i] = __fmaf_rn(low, angles.cosine[i], __fmul_rn(high, -s));
    b[i] = __fmaf_rn(high, angles.cosine[i], __fmul_rn(low, s));
  }
}

}  // namespace lockstep::kernels::cuda
