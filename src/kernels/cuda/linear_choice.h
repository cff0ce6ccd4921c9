// Chooses the kernel of a matmul. cuBLASLt without split-K and our own kernels add up in the same order (groups of 16
// of k, one f32 accumulator), so the choice changes the speed and never a bit. It is made at the first use of a shape:
// the candidates run on random rows (linear_trial.cuh), those whose bits differ from our plain kernel's are dropped,
// and the fastest is kept. For few rows the candidates are timed inside a captured graph of many matmuls, as in a
// decode step.
//   residual    cuBLASLt adds it as C with beta = 1: f32(acc) + C, rounded once, which is what our epilogue does. Not
//               where C is y itself: its sums are then rounded before they are added
//   bias        cuBLASLt's epilogue would add it after C and in y's type. So for a matmul with a bias cuBLASLt writes
//               f32 sums to scratch memory, and a second kernel runs our epilogue on them
//
// Shapes that are unaligned, and matmuls too small to matter, always use our own kernels.
#pragma once

#include <array>
#include <functional>

#include "kernels/cuda/library.h"
#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/linear_tiles.h"

namespace lockstep::kernels::cuda {

struct KernelTime {
  const SmallKernel* kernel = nullptr;
  float milliseconds = 0;
};
inline constexpr size_t kMaxRings = 8;
// One of our kernels, or an algorithm of cuBLASLt.
struct Choice {
  const SmallKernel* kernel = nullptr;
  cublasLtMatmulAlgo_t algo{};
  float milliseconds = 0;                     // how long it takes
  std::array<KernelTime, kMaxRings> rings{};  // how long each kernel of linear_ring.cu took
  KernelTime tiles{};                         // how long linear_tiles.cu took, where it is a candidate
};

// The choice for this shape, remembered in library.linear.
Choice choose_linear(Library& library, const Matmul& p, Stream& stream);
// Among the kernels that compute an adapter in their launch (can_expand()): the one expected to be fastest, for up to
// kFewRows rows the one that preferred() takes (linear_choice.cu), or nullptr where separate launches are faster.
const SmallKernel* adapted_ring(const Library& library, const Matmul& p, const Choice& choice,
                                const LoraShrinks& shrinks);
// Whether linear_tiles.cu takes the whole of `tiled` in less time than `apart`, launches that make the same of it: both
// are timed at the first use of a shape, on the call's own tensors, to which each of them gives the same results.
// Without `apart`, because the op that reads y adds h B: whether it is as fast as the choice for the matmul alone.
bool tiles_are_faster(Library& library, const TileLinear& tiled, const std::function<void()>& apart, Stream& stream);
void run_linear(Library& library, const Matmul& p, const Choice& choice, cudaStream_t stream);
// As run_linear, but returns false where cuBLASLt refuses.
bool try_linear(const Library& library, const Matmul& p, const Choice& choice, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
