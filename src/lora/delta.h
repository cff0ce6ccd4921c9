// The adapter's part of a product: y += scale * (x A^T) B^T, and its gradients. Batches hold rows of several adapters.
#pragma once

#include <span>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/elementwise.h"
#include "lora/adapter.h"

namespace lockstep::lora {

// Consecutive rows of a batch and the adapter they use; nullptr is the base (the reference policy). Rows not listed are
// base rows.
struct AdapterRows {
  int64_t row_begin = 0, rows = 0;
  const AdapterVersion* adapter = nullptr;
};

// Dropout of the adapter's input (SFT only); p = 0 means none. module = pair index.
struct DeltaDropout {
  float p = 0;
  uint64_t key = 0;
  uint32_t step = 0;
  std::span<const int32_t> sample, position;  // per row of the batch
};

// y [T, out of product], x [T, in]. The base product is already in y; its chain goes on over the rank.
// Bits of a row do not depend on other rows or on their adapters. `arena` gives scratch.
void delta_forward(Tensor y, ConstTensor x, int64_t layer, Product product, std::span<const AdapterRows> adapters,
                   const DeltaDropout& dropout, Arena& arena, Stream& stream);

// Consecutive rows and the flat gradient buffer (num_floats) of their lane: each lane is one chain over its tokens.
struct GradientRows {
  int64_t row_begin = 0, rows = 0;
  float* gradient = nullptr;
};

// dx += scale * (dy B) A (unless dx is empty);  dB += scale * dy^T h,  dA += scale * (dy B)^T x  into the lanes,
// continuing chains. One adapter for all rows: training batches hold one.
void delta_backward(Tensor dx, ConstTensor dy, ConstTensor x, int64_t layer, Product product,
                    const AdapterVersion& adapter, std::span<const GradientRows> lanes, const DeltaDropout& dropout,
                    Arena& arena, Stream& stream);

}  // namespace lockstep::lora
