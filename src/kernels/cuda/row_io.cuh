// Rows of activations, eight elements at a time: as 16 bytes where the alignment allows it, else element by
// element, with the same values.
#pragma once

#include <algorithm>

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// Whether every row of `tensor` begins at a multiple of 16 bytes.
inline bool rows_aligned(const ConstTensor& tensor) {
  const int64_t pitch = tensor.shape[0] > 1 ? tensor.row_stride * dtype_bytes(tensor.dtype) : 0;
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && pitch % 16 == 0;
}

// Activations as kernel arguments.
struct Matrix {
  bf16* data;
  int64_t stride;
  bool aligned;

  explicit Matrix(const ConstTensor& t)
      : data(const_cast<bf16*>(data_of<bf16>(t))), stride(t.row_stride), aligned(rows_aligned(t)) {}
  __device__ bf16* at(int64_t row, int column) const { return data + row * stride + column; }
};

// Loads elements p[0 .. 7]; those from `count` on read as 0.
__device__ __forceinline__ uint4 load_bf16x8(const bf16* p, int count, bool aligned) {
  if (aligned && count >= 8) return *reinterpret_cast<const uint4*>(p);
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = 2 * i < count ? __bfloat16_as_ushort(p[2 * i]) : 0;
    const uint32_t high = 2 * i + 1 < count ? __bfloat16_as_ushort(p[2 * i + 1]) : 0;
    word[i] = low | high << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// Loads eight elements at a multiple of 16 bytes; if not `there`, gives zeros and reads nothing.
__device__ __forceinline__ uint4 load_all8(const bf16* p, bool there) {
  return there ? *reinterpret_cast<const uint4*>(p) : uint4{};
}
__device__ __forceinline__ void load_all8(float (&v)[8], const float* p, bool there) {
  const float4 low = there ? reinterpret_cast<const float4*>(p)[0] : float4{};
  const float4 high = there ? reinterpret_cast<const float4*>(p)[1] : float4{};
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void widen(float (&v)[8], uint4 packed) {
  const uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(word[i] << 16);
    v[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void load8(float (&v)[8], const bf16* p, int count, bool aligned) {
  widen(v, load_bf16x8(p, count, aligned));
}
__device__ __forceinline__ void load8(float (&v)[8], const float* p, int count, bool aligned) {
  if (aligned && count >= 8) {
    const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < count ? p[i] : 0.0f;
}

__device__ __forceinline__ uint4 rounded(const float (&v)[8]) {
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}
__device__ __forceinline__ void store8(bf16* p, const float (&v)[8], int count, bool aligned) {
  if (aligned && count >= 8) {
    *reinterpret_cast<uint4*>(p) = rounded(v);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) p[i] = __float2bfloat16_rn(v[i]);
}
__device__ __forceinline__ void store8(float* p, const float (&v)[8], int count, bool aligned) {
  if (aligned && count >= 8) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) p[i] = v[i];
}

// A grid for elementwise work: x runs over pieces of a row (one per thread, `units` in all), y over rows; a kernel
// strides by gridDim.y, which has an upper limit.
inline constexpr int kRowThreads = 128;
inline dim3 row_grid(int64_t units, int64_t rows) {
  return dim3(static_cast<unsigned>((units + kRowThreads - 1) / kRowThreads),
              static_cast<unsigned>(std::min<int64_t>(rows, 65535)));
}

}  // namespace lockstep::kernels::cuda
