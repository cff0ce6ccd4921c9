// The adapter's part of a linear layer and its gradients, for one adapter and the pairs that read one input (q, k, v;
// gate, up).
//   y[:, out of p] += scale_p (x A_p) B_p
// h and dh lie side by side: pair p owns `rank` columns after those of the pairs before it.
#pragma once

#include <span>
#include <vector>

#include "core/device.h"
#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::kernels {

// On a GPU, several adapters as one whose ranks are theirs side by side (lora/adapter_stack.h): adapter i has the i-th
// of `adapters` equal parts of a pair's ranks, and the rows rows[2 i] .. rows[2 i + 1] - 1. In all other rows h of its
// ranks is 0, and so adds nothing.
struct RankRows {
  const int32_t* rows = nullptr;  // device memory [2 * adapters]; nullptr: all ranks are of one adapter
  int64_t adapters = 1;
};

// The largest rank of a pair that the launch of its layer's matmul takes along on a GPU.
inline constexpr int64_t kMaxStackedRank = 64;

struct LoraPair {
  ConstTensor a;          // A, contiguous: f32 [in, rank] on the CPU, bf16 [rank, in] on a GPU
  ConstTensor b;          // B transposed, [rank, out], of a's type
  int64_t out_begin = 0;  // first output of the layer that it adds to
  float scale = 1;
  int64_t a_offset = 0, b_offset = 0;  // of the same tensors in a flat gradient buffer, floats
  uint32_t number = 0;                 // of the pair in its adapter: what dropout counts by
  RankRows rank_rows = {};             // forward only; `rank` is a multiple of 16 for each adapter

  int64_t rank() const { return b[0]; }
  int64_t in() const { return a.elements() / rank(); }
};
int64_t total_rank(std::span<const LoraPair> pairs);

struct GradientPlan;
struct PackedWeight;

// Outputs [begin, begin + count) of a layer whose magnitude or bias is trained: places in a flat gradient buffer,
// floats, or -1.
struct TrainedOutputs {
  int64_t begin = 0, count = 0;
  int64_t magnitude = -1, bias = -1;
};

// Consecutive rows of one adapter, with its pairs that read one input, and what else it has at this layer.
struct LoraSegment {
  int64_t row_begin = 0, rows = 0;
  std::span<const LoraPair> pairs = {};
  const GradientPlan* gradients = nullptr;  // backward: where dA and dB of these rows go
  // Constants: first values that are subtracted (scale is negative). They have no gradient, and dropout leaves what
  // they read alone.
  std::span<const LoraPair> subtracted = {};
  // [N] f32 or empty: a factor of each output (DoRA: magnitude / |W + scale B A|), a bias in place of the layer's.
  ConstTensor factor = {}, bias = {};
  const PackedWeight* weight = nullptr;  // in place of the layer's, of its shape
  // Backward. [N] f32, where a magnitude is trained: 1 / |W + scale B A|, and that over the factor, which is empty
  // where some factor is nearly 0.
  ConstTensor inverse_norm = {}, inverse_magnitude = {};
  std::span<const TrainedOutputs> trained = {};
  int64_t weight_gradient = -1;  // offset of the weight's [N, K] in a flat gradient buffer; -1: it is a constant

  bool has_extras() const { return !subtracted.empty() || !factor.empty() || !bias.empty() || weight != nullptr; }
};

// Dropout of what an adapter's pairs read (kernels/elementwise.h), each pair under a mask of its own. p = 0: none.
struct LoraDropout {
  float p = 0;
  uint64_t key = 0;
  uint32_t step = 0;
  std::span<const int32_t> sample = {}, position = {};  // [T] in the stream's memory
};

inline constexpr int64_t kMaxGpuRank = 256;
int64_t max_lora_rank(Device device);  // of a pair
// Whether short runs of rows of several adapters can share a launch (LoraTiles), and whether a pass gains by keeping h
// for its backward (LinearAdapters::h).
bool has_lora_tiles(Device device);
bool gains_by_kept_h(Device device);

// Ranks from 1; on a GPU at most kMaxGpuRank a pair. All tensors are activations: f32 on the CPU, bf16 on a GPU, with
// f32 sums. x [T, in]   h, dh [T, total rank]   y, dy [T, outputs of the layer]   dx [T, in].   A row's bits do not
// depend on T.

// h_p = x A_p        (one chain over `in`; CUDA: of groups of 16, as linear(); 0 where rank_rows says so)
void lora_shrink(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream);
// y[:, out of p] += scale_p h_p B_p       (CPU: the chain of y goes on; CUDA: added in f32, then rounded; y may be f32)
void lora_expand(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream);
// dh_p = scale_p dy[:, out of p] B_p^T    (as lora_shrink, over `out`)
void lora_expand_backward(Tensor dh, ConstTensor dy, std::span<const LoraPair> pairs, Stream& stream);
// dx += sum over p, in order, of dh_p A_p^T
void lora_shrink_backward(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream);

// ---- few rows of many adapters in one launch (GPU) ----

inline constexpr int kLoraTileRows = 16;
inline constexpr int kMaxSitePairs = 3;

// Neighbouring rows of one adapter, at most kLoraTileRows; none: an entry that only fills the list.
struct LoraTile {
  int32_t row_begin = 0, rows = 0, adapter = 0;
};
// The pairs of one adapter that read one input. Device pointers to contiguous bf16.
struct LoraSitePair {
  const void *a = nullptr, *b = nullptr;  // [rank, in], [rank, out]
  int32_t rank = 0, in = 0, out = 0, out_begin = 0;
  float scale = 1;
};
struct LoraSite {
  LoraSitePair pair[kMaxSitePairs];
  int32_t count = 0;
};
// Device memory. Rows of no tile are base rows.
struct LoraTiles {
  const LoraTile* tiles = nullptr;
  int64_t num_tiles = 0;
  const LoraSite* sites = nullptr;  // [adapters, num_sites]
  int64_t num_sites = 0;
  int64_t max_rank = 0;  // of a pair; multiple of 16. Sizes the launch and h, changes no result

  int64_t h_columns() const { return kMaxSitePairs * max_rank; }
};

// h = x A and y += scale h B as lora_shrink and lora_expand make them of each tile's rows alone, bit for bit, with the
// pairs of its adapter at `site`.   x [T, in]   h [T, h_columns()]   y [T, outputs of the layer]   DeviceError on a
// CPU.
void lora_shrink_tiles(Tensor h, ConstTensor x, const LoraTiles& tiles, int64_t site, Stream& stream);
void lora_expand_tiles(Tensor y, ConstTensor h, const LoraTiles& tiles, int64_t site, Stream& stream);

// On a GPU, y += scale h B that is still to be added: of one adapter (pairs) or of many (tiles, whose pairs cover whole
// modules: gate, up or both, heads of q, k and v). See kernels/unfinished_linear.h.
struct LoraDelta {
  ConstTensor h;  // [T, total rank], or [T, tiles.h_columns()]
  std::span<const LoraPair> pairs = {};
  LoraTiles tiles = {};
  int64_t site = 0;  // of the tiles

  bool empty() const { return pairs.empty() && tiles.num_tiles == 0; }
};
void add_delta(Tensor y, const LoraDelta& delta, Stream& stream);

// Consecutive rows (a sample, or a part of one that begins at a multiple of 256 of its rows) and the flat gradient
// buffer of their lane. Rows of no entry add nothing.
struct GradientRows {
  int64_t row_begin = 0, rows = 0;
  float* gradient = nullptr;
};
// The same on a GPU: blocks of at most 256 rows, neighbours of one gradient buffer side by side.
struct GradientBlock {
  int32_t row_begin = 0, rows = 0;
};
struct GradientLane {
  float* gradient = nullptr;
  int32_t first_block = 0, num_blocks = 0;
};
struct GradientPlan {
  std::span<const GradientRows> rows;     // host
  const GradientBlock* blocks = nullptr;  // device
  const GradientLane* lanes = nullptr;    // device
  int64_t num_blocks = 0, num_lanes = 0;
  float* partial = nullptr;  // device: one block's dA and dB each, [num_blocks, largest of lora_gradient_floats]

  GradientPlan() = default;
  GradientPlan(std::span<const GradientRows> r) : rows(r) {}                      // NOLINT: on the CPU that is all
  GradientPlan(const std::vector<GradientRows>& r) : rows(r.data(), r.size()) {}  // NOLINT
};
// partial_floats: the largest lora_gradient_floats of the calls to come. Memory in `arena` (of the stream's device).
GradientPlan plan_gradients(std::span<const GradientRows> rows, int64_t partial_floats, Arena& arena, Stream& stream);
int64_t lora_gradient_floats(std::span<const LoraPair> pairs);  // dA and dB of one block, all pairs
// Of one GradientRows; 0 on the CPU, which has no partial sums.
int64_t gradient_blocks(int64_t rows, Device device);

// dA_p += x^T dh_p,  dB_p += scale_p h_p^T dy[:, out of p]   into each lane's buffer at a_offset and b_offset, f32.
// CPU: one chain over a lane's rows in order. CUDA: one chain per block of 256 rows, the blocks' sums added in order.
void lora_gradient(const GradientPlan& plan, ConstTensor x, ConstTensor h, ConstTensor dh, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream);

// lora_expand_backward, then lora_gradient: the same bits, on a GPU with many rows by one pass over dy and one over x.
void lora_backward(const GradientPlan& plan, Tensor dh, ConstTensor x, ConstTensor h, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream);

}  // namespace lockstep::kernels
