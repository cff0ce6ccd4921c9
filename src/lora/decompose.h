// Factorizations of a dense matrix, by Eigen: what PiSSA, OLoRA and the orthogonal initialization begin with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/tensor.h"

namespace lockstep::lora {

// left [rows, rank], right [rank, cols], both row-major.
struct MatrixFactors {
  std::vector<float> left, right;
};

// The best approximation of W by a matrix of this rank, left right = U_r S_r V_r^T, with sqrt(S_r) on either side.
//   weight       [rows, cols] f32, host memory
//   iterations   nothing: of the whole decomposition; else of a randomized one, by so many subspace iterations on a
//                basis of a few more columns than the rank, drawn from `seed`: arXiv 0909.4061, algorithms 4.4 and 5.1
// Deterministic, on the calling thread. rank at most min(rows, cols).
MatrixFactors largest_singular_part(ConstTensor weight, int64_t rank, std::optional<int64_t> iterations, uint64_t seed);

// W's QR decomposition, of which Q's first `rank` columns and R's first `rank` rows are returned; as above.
MatrixFactors leading_qr(ConstTensor weight, int64_t rank);

// Q of the QR decomposition of `matrix` [n, n], in its place.
void orthogonalize(std::vector<float>& matrix, int64_t n);

}  // namespace lockstep::lora
