// The pairs of one call, passed as a kernel argument.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "kernels/cuda/tile.cuh"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

inline constexpr int kMaxPairs = 16;

// One pair's matmul: rows of `x` times `b`. Slots number the columns of all pairs; each pair is padded to whole tiles
// (or to 8 columns), so that a tile, or a group of 8 columns, belongs to one pair.
struct PairMatmul {
  Operand x, b;
  int64_t first_slot = 0;
  int64_t y_begin = 0, y_cols = 0;  // columns of the result
  float scale = 1;
};

struct PairMatmuls {
  PairMatmul pair[kMaxPairs];
  int count = 0;
  int64_t slots = 0;

  void add(PairMatmul matmul, int64_t pad) {
    matmul.first_slot = slots;
    slots += (matmul.y_cols + pad - 1) / pad * pad;
    pair[count++] = matmul;
  }
  __device__ int find(int64_t slot) const {
    int p = 0;
    while (p + 1 < count && slot >= pair[p + 1].first_slot) ++p;
    return p;
  }
};

struct LoraRows {
  bf16* y = nullptr;
  int64_t stride = 0, count = 0;
};

inline void require_few_pairs(std::span<const LoraPair> pairs, const char* op) {
  if (pairs.size() > static_cast<size_t>(kMaxPairs))
    throw ShapeError({.what = "too many LoRA pairs that read one input",
                      .where = op,
                      .got = std::to_string(pairs.size()),
                      .wanted = "at most " + std::to_string(kMaxPairs)});
}

// The columns of x that belong to one pair.
inline Operand columns_of(const ConstTensor& x, int64_t begin, int64_t count) {
  return operand(data_of<bf16>(x) + begin, x.row_stride, x[0], count);
}

}  // namespace lockstep::kernels::cuda
