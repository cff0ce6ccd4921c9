// How the ring-buffer matmuls that store y end: bias, residual and the adapter's part are added.
#pragma once

#include "kernels/cuda/linear_ring_adapter.cuh"

namespace lockstep::kernels::cuda {

// Where a thread's accumulators lie in a matrix of T whose first element is `from`: the output place.output, and at
// `second` the one eight further. Offsets are 32 bits to keep the code short: a matmul of 4 us notices how long its
// instructions take to arrive from memory.
template <class T>
struct ThreadOutputs {
  T *first, *second;
  int stride;

  __device__ ThreadOutputs(T* from, int64_t stride_, int64_t output, int64_t second_output)
      : first(from + output), second(from + second_output), stride(static_cast<int>(stride_)) {}
};

// The residual of a thread's accumulators, as stored; elements outside the matrix are replaced by those at its edge.
// There is no branch and no arithmetic between the loads: if each value were converted to float as it arrives, the
// thread would wait for memory 32 times.
template <class S, class T>
__device__ __forceinline__ void load_residual(uint32_t (&bits)[S::kTokenTiles][4], const Matmul& p,
                                              const Place& place) {
  const ThreadOutputs<const T> from(static_cast<const T*>(p.end.residual), p.end.residual_stride,
                                    min(place.output_of(0), place.end - 1), min(place.output_of(2), place.end - 1));
  const int last = static_cast<int>(p.x.rows) - 1;
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = min(place.token + 8 * j + i, last) * from.stride;
      bits[j][i] = from.first[at], bits[j][2 + i] = from.second[at];
    }
}

// The epilogue: bias, residual and the adapter's part are added, then the results are stored. T: the storage type of y.
template <class S, class T, class Adapter>
__device__ __forceinline__ void finish(float (&acc)[S::kTokenTiles][4], const uint32_t (&residual)[S::kTokenTiles][4],
                                       const Matmul& p, const DeltaOf<Adapter, false>& b, const Place& place,
                                       uint32_t h, int lane) {
  constexpr bool kRounded = sizeof(T) == 2;
  const int64_t last = place.end - 1;
  if (p.end.bias) {
    add_bias(acc, {p.end.bias[min(place.output_of(0), last)], p.end.bias[min(place.output_of(2), last)]});
  }
  if (p.end.residual) {
#pragma unroll
    for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        acc[j][e] = __fadd_rn(acc[j][e], __uint_as_float(kRounded ? residual[j][e] << 16 : residual[j][e]));
  }
  if constexpr (kExpands<Adapter>) b.add_to(acc, h, lane);
  const ThreadOutputs<T> to(static_cast<T*>(p.end.y), p.end.y_stride, place.output_of(0), place.output_of(2));
  const bool both = place.output_of(2) < place.end;
  const int rows = static_cast<int>(p.x.rows);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (place.token + 8 * j + i >= rows) continue;
      const int at = (place.token + 8 * j + i) * to.stride;
      const auto bits = [](float value) -> T {
        if constexpr (kRounded) return __bfloat16_as_ushort(__float2bfloat16_rn(value));
        return __float_as_uint(value);
      };
      to.first[at] = bits(acc[j][i]);
      if (both) to.second[at] = bits(acc[j][2 + i]);
    }
}

}  // namespace lockstep::kernels::cuda
