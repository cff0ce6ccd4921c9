// Draws tokens from logits, by counted randomness.
#pragma once

#include <span>

#include "core/memory.h"
#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// How one row is drawn.
struct SampleRow {
  uint64_t seed = 0;
  Counter counter = {};
  float temperature = 1;  // 0: the largest logit (the lowest id among equals)
  float top_p = 1;        // smallest set of most likely tokens whose probability reaches top_p
  float min_p = 0;        // drop tokens less likely than min_p times the most likely
  int32_t top_k = 0;      // 0: all
};

// Filters in the order temperature, top-k, top-p, min-p (equals: lower id first), then inverts the cumulative sum
// (index order) at uniform01(philox(seed, counter)[0]). Temperature 0 and top_k = 1 take the largest logit. A row's
// token depends only on its logits and its SampleRow, not on the other rows. CPU and GPU may differ where a sum is
// rounded differently.
//   logits   [R, V] f32   read only
//   scratch  [R, V] f32   contents undefined afterwards (CPU; may be empty on a GPU)
//   tokens   [R]          -1 where the row's logits are not finite
//   rows     [R]          tokens and rows lie in the stream's memory
// Throws ShapeError.
void sample_tokens(std::span<int32_t> tokens, Tensor scratch, ConstTensor logits, std::span<const SampleRow> rows,
                   Stream& stream);

// The scratch that sample_tokens needs where the arena lies; empty on a GPU.
Tensor sample_scratch(int64_t rows, int64_t vocab, Arena& arena);

}  // namespace lockstep::kernels
