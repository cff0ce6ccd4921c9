// kernels: the arithmetic. One op per file: <op>.h is the contract, <op>.cpp checks shapes and dispatches, cpu/<op>.cpp
// computes (Google Highway: AVX2, AVX-512, NEON from one source), cuda/<op>.cu on a GPU (absent/ without CUDA).
//
//   includes    core only
//   memory      ops own nothing; callers pass views; scratch comes from the Stream's workers
//   threads     an op spreads its outputs over the Stream's workers and returns when it is done; on a GPU it is queued
//   types       activations are f32 on the CPU and bf16 on a GPU (activation_dtype); sums are f32 everywhere
//
// The CPU is the reference. Its rules make bits independent of batch, tiling, thread count and vector width:
//   * a matmul's output element is ONE accumulator: c = fma(a_k, b_k, c) for k in order; blocks of k store and
//     continue the same chain; threads and tiles split only output elements;
//   * a sum inside a row (norms, softmax) uses 16 lanes: lane i = chain over elements i, i+16, ... in order; then the
//     lanes are combined pairwise: 8+8, 4+4, 2+2, 1+1 (lane i with lane i+8, and so on);
//   * a gradient is one chain over tokens in order, continued across calls;
//   * multiply-add is fused exactly where the code says so (the build forbids contraction);
//   * exp and log are our own vector code.
// On a GPU the step of a chain is one tensor-core group of 16 in order of k (mma.sync and cuBLASLt without split-K
// agree bit for bit), sums inside a row have a fixed tree, and gradients are chains over 256-token blocks that begin
// where samples begin. So there, too, a row's bits depend on nothing but the row.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace lockstep::kernels {

inline DType activation_dtype(Device device) {
  return device == Device::cpu ? DType::f32 : DType::bf16;
}

}  // namespace lockstep::kernels
