// The adapter's part of a product: y += scale * (x A^T) B^T, and its gradients. Batches hold rows of several adapters.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/lora.h"
#include "lora/adapter.h"
#include "lora/adapter_tiles.h"

namespace lockstep::lora {

// The adapters of a batch's rows.
struct AdapterBatch {
  std::span<const AdapterRows> rows;
  kernels::LoraTiles tiles = {};  // on a GPU: those of further rows, in one launch
  Tensor h = {};  // [T, ranks]: where h = x A of all rows goes, if all are of one adapter, without dropout, on a GPU;
                  // empty: scratch

  AdapterBatch() = default;
  AdapterBatch(std::span<const AdapterRows> r) : rows(r) {}  // NOLINT: on the CPU that is all
  AdapterBatch(std::span<const AdapterRows> r, const kernels::LoraTiles& t) : rows(r), tiles(t) {}
};

// Dropout of the adapter's input (SFT only); p = 0 means none. module = pair index.
struct DeltaDropout {
  float p = 0;
  uint64_t key = 0;
  uint32_t step = 0;
  std::span<const int32_t> sample, position;  // per row of the batch, in the stream's memory
};

// y = linear_forward(x, weight, bias, residual), then delta_forward. On a GPU the adapter's inner product runs beside
// the base's.
void adapted_linear_forward(Tensor y, ConstTensor x, const kernels::PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, int64_t layer, Product product, const AdapterBatch& adapters,
                            const DeltaDropout& dropout, Arena& arena, Stream& stream);

// What a product still lacks, with what it points at. Its h lives in the arena of the call: no Scope may end between.
class LinearDelta {
 public:
  LinearDelta() = default;
  LinearDelta(LinearDelta&&) = default;
  LinearDelta& operator=(LinearDelta&&) = default;

  LinearDelta(std::vector<kernels::LoraPair> pairs, Tensor h) : pairs_(std::move(pairs)) {
    delta_.h = h;
    delta_.pairs = pairs_;
  }
  LinearDelta(const kernels::LoraTiles& tiles, int64_t site, Tensor h) {
    delta_.h = h;
    delta_.tiles = tiles, delta_.site = site;
  }

  const kernels::PendingDelta& get() const { return delta_; }

 private:
  std::vector<kernels::LoraPair> pairs_;
  kernels::PendingDelta delta_;
};

// adapted_linear_forward, of which the op that reads y next does the end: on a GPU, of one adapter without dropout, or
// of tiles. Anything else is complete, and what is returned is empty.
[[nodiscard]] LinearDelta adapted_linear_begin(Tensor y, ConstTensor x, const kernels::PackedWeight& weight,
                                               ConstTensor bias, ConstTensor residual, int64_t layer, Product product,
                                               const AdapterBatch& adapters, const DeltaDropout& dropout, Arena& arena,
                                               Stream& stream);

// act = swiglu_forward of gate_up, the complete product, which may be left unwritten.
void adapted_swiglu_forward(Tensor act, Tensor gate_up, ConstTensor x, const kernels::PackedWeight& weight,
                            ConstTensor bias, int64_t layer, const AdapterBatch& adapters, const DeltaDropout& dropout,
                            Arena& arena, Stream& stream);

// y [T, out of product], x [T, in]. The base product is already in y (on the CPU its chain goes on over the rank).
// Bits of a row do not depend on other rows or on their adapters. `arena` gives scratch.
void delta_forward(Tensor y, ConstTensor x, int64_t layer, Product product, const AdapterBatch& adapters,
                   const DeltaDropout& dropout, Arena& arena, Stream& stream);

// Gradients go to flat buffers in the adapter's layout, one per lane (kernels/lora.h).
using kernels::GradientRows;
int64_t gradient_floats(const AdapterLayout& layout);  // of the product with most: for kernels::plan_gradients

// What backward reads of a product's forward pass: x, and h = x A if it was kept, else it is computed again.
struct KeptInput {
  ConstTensor x, h;
};

// dx = linear_backward_input(dy, weight) (unless dx is empty), then delta_backward. On a GPU the adapter's gradients
// are made beside the base's product.
void adapted_linear_backward(Tensor dx, ConstTensor dy, const KeptInput& input, const kernels::PackedWeight& weight,
                             int64_t layer, Product product, const AdapterVersion& adapter,
                             const kernels::GradientPlan& lanes, const DeltaDropout& dropout, Arena& arena,
                             Stream& stream);
// The same, of which the op that reads dx next does the end, dx += dh A: on a GPU, of one pair without dropout.
// Anything else is complete, and what is returned is empty.
[[nodiscard]] LinearDelta adapted_linear_backward_begin(Tensor dx, ConstTensor dy, const KeptInput& input,
                                                        const kernels::PackedWeight& weight, int64_t layer,
                                                        Product product, const AdapterVersion& adapter,
                                                        const kernels::GradientPlan& lanes, const DeltaDropout& dropout,
                                                        Arena& arena, Stream& stream);

// dx += scale * (dy B) A (unless dx is empty);  dB += scale * dy^T h,  dA += scale * (dy B)^T x  into the lanes,
// continuing chains. One adapter for all rows: training batches hold one.
void delta_backward(Tensor dx, ConstTensor dy, ConstTensor x, int64_t layer, Product product,
                    const AdapterVersion& adapter, const kernels::GradientPlan& lanes, const DeltaDropout& dropout,
                    Arena& arena, Stream& stream);

}  // namespace lockstep::lora
