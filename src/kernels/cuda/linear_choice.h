// Which kernel computes a product. cuBLASLt without split-K and our own kernels walk the same chain (groups of 16 in
// order, one f32 accumulator), so the choice changes the speed and never a bit. It is made at the first use of a shape:
// the candidates run on random rows (linear_trial.cuh), those whose bits differ from our plain kernel's are dropped,
// the fastest is kept. Few rows: the fastest in a recorded row of products, as in a decode step.
//   residual    cuBLASLt adds it as C with beta = 1: f32(acc) + C, rounded once, as ours do
//   bias        its epilogue would add it after C, and in y's type: so cuBLASLt gives f32 sums to scratch memory and a
//               second kernel does what the end of our own kernels does
// Numerics::fast leaves out the comparison and allows split-K.
//   unaligned or odd shapes, and products too small to matter: our own kernels
#pragma once

#include <array>

#include "kernels/cuda/library.h"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

struct RingTime {
  const SmallKernel* kernel = nullptr;
  float milliseconds = 0;
};
inline constexpr size_t kMostRings = 8;
// Our kernel or cuBLASLt's.
struct Choice {
  const SmallKernel* kernel = nullptr;
  cublasLtMatmulAlgo_t algo{};
  float milliseconds = 0;                    // of it
  std::array<RingTime, kMostRings> rings{};  // what those of linear_ring.cu took
};

// Remembered in library.linear.
Choice choose_linear(Library& library, const Product& p, Stream& stream);
// For a product with an adapter in its launch, of those that can_expand(): the one that will probably be fastest, or
// nullptr where launches of their own are.
const SmallKernel* adapted_ring(const Library& library, const Product& p, const Choice& choice,
                                const InnerProducts& inner);
void run_linear(Library& library, const Product& p, const Choice& choice, cudaStream_t stream);
// The same; false where cuBLASLt refuses.
bool try_linear(const Library& library, const Product& p, const Choice& choice, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
