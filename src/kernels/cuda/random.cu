#include <algorithm>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Eight elements per thread and step, from two Philox draws of four.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(T* x, int64_t count, float bound, uint64_t key, uint32_t tensor, bool aligned) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t piece = int64_t{blockIdx.x} * kThreads + threadIdx.x; 8 * piece < count; piece += step) {
    float v[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t quad = 2 * static_cast<uint64_t>(piece) + half;
      const uint4 bits =
          philox_bits(key, make_uint4(tensor, 0, static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32)));
      const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) v[4 * half + j] = __fmul_rn(2 * uniform_of(word[j]) - 1, bound);
    }
    const int64_t left = count - 8 * piece;
    store8(x + 8 * piece, v, left < 8 ? static_cast<int>(left) : 8, aligned);
  }
}

template <class T>
void fill(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream) {
  constexpr int64_t kMaxBlocks = 4096;
  const int64_t pieces = (x.elements() + 7) / 8;
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, (pieces + kThreads - 1) / kThreads));
  fill_kernel<<<blocks, kThreads, 0, stream_of(stream)>>>(data_of<T>(x), x.elements(), bound, key, tensor,
                                                          reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
  check_launch("fill_uniform", {x});
}

}  // namespace

void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream) {
  if (x.dtype == DType::f32)
    fill<float>(x, bound, key, tensor, stream);
  else
    fill<bf16>(x, bound, key, tensor, stream);
}

}  // namespace lockstep::kernels::cuda
