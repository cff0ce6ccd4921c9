// silu(gate) * up: the same steps wherever it is computed.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// 1 / (1 + exp(-z)): exp(-z) may be infinite, and the result is then exactly 0. The steps are those of __expf and
// __fdividef without their handling of subnormal numbers, which make no difference beside 1.
__device__ __forceinline__ float sigmoid(float z) {
  constexpr float kLog2E = 1.4426950216293335f;
  float power, share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(z, -kLog2E)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(__fadd_rn(1.0f, power)));
  return share;
}
__device__ __forceinline__ float swiglu(float gate, float up) {
  return __fmul_rn(__fmul_rn(gate, sigmoid(gate)), up);
}
// From a matmul's values, which are rounded to the storage type first.
__device__ __forceinline__ bf16 swiglu_of_sums(float gate, float up) {
  const auto stored = [](float value) { return __bfloat162float(__float2bfloat16_rn(value)); };
  return __float2bfloat16_rn(swiglu(stored(gate), stored(up)));
}
// Of two stored values each, which share a 32-bit word.
__device__ __forceinline__ uint32_t swiglu_2(uint32_t gate, uint32_t up) {
  return pack_bf16(swiglu(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
                   swiglu(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
}

// Gradients of gate and up, given the gradient of silu(gate) * up.
__device__ __forceinline__ void swiglu_gradient(float& gate, float& up, float grad) {
  const float z = gate, share = sigmoid(z);
  const float slope = __fmul_rn(share, __fmaf_rn(z, __fsub_rn(1.0f, share), 1.0f));
  gate = __fmul_rn(__fmul_rn(grad, up), slope);
  up = __fmul_rn(grad, __fmul_rn(z, share));
}

}  // namespace lockstep::kernels::cuda
