// silu(gate) * up, the same steps wherever it is computed.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// 1 / (1 + exp(-z)): exp(-z) may be infinite, the result is then a clean 0.
__device__ __forceinline__ float sigmoid(float z) {
  return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-z)));
}
__device__ __forceinline__ float swiglu(float gate, float up) {
  return __fmul_rn(__fmul_rn(gate, sigmoid(gate)), up);
}
// Of a product's values, which count as stored.
__device__ __forceinline__ bf16 swiglu_of_sums(float gate, float up) {
  const auto stored = [](float value) { return __bfloat162float(__float2bfloat16_rn(value)); };
  return __float2bfloat16_rn(swiglu(stored(gate), stored(up)));
}

}  // namespace lockstep::kernels::cuda
