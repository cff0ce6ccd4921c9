// The arithmetic of rmsnorm_forward: the same steps in every kernel that normalizes a row.
#pragma once

#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {

// A thread holds up to kNormPieces pieces of eight elements: piece j of thread i begins at 8 * (i + j * threads). The
// number of threads per row follows from its width, and so does the order of its sums.
inline constexpr int kNormPieces = 4;
inline constexpr int kWidestWarpNorm = 32 * 8 * kNormPieces, kWidestWarpgroupNorm = 128 * 8 * kNormPieces;
inline constexpr int kWidestNorm = 512 * 8 * kNormPieces;

__device__ __forceinline__ float add_squares(float sum, uint4 piece) {
  float v[8];
  widen(v, piece);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(v[i], v[i], sum);
  return sum;
}
__device__ __forceinline__ float rstd_of(float squares, int width, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(width));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}
__device__ __forceinline__ void normed(float (&v)[8], uint4 piece, float rstd, const float (&weight)[8]) {
  widen(v, piece);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(__fmul_rn(v[i], rstd), weight[i]);
}

}  // namespace lockstep::kernels::cuda
