// What the warps of a streaming block share (fused_linear_kernel.cuh): arguments, places in shared memory, normalized
// x, and the walk along K.
#pragma once

#include "kernels/cuda/fused_linear.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kCluster = 8;
inline constexpr int kMostStages = 16;
inline constexpr int kShrinkSegment = 256;            // lora.cu
inline constexpr int kSlotStride = kStreamSlots + 8;  // of h in shared memory

struct StreamArgs {
  CUtensorMap x_map, w_map;  // boxes of 64 columns
  ProductEnd end;
  const bf16* x = nullptr;
  int64_t x_stride = 0;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  int rows = 0, depth = 0, outputs = 0;  // columns of y
  int block_columns = 0;                 // of y, per block
  int warps_n = 0, tiles_per_warp = 0;   // 8 columns of y each
  int stages = 0;
  bool swiglu = false;
  StreamPair pair[kStreamPairs];
  int num_pairs = 0, slots = 0, most_slots = 0;  // all pairs together, the largest pair

  __host__ __device__ int weight_rows() const { return swiglu ? 2 * block_columns : block_columns; }
  // The pair of a column of the product; num_pairs if none.
  __device__ int pair_of(int column) const {
    int p = 0;
    while (p < num_pairs && (column < pair[p].begin || column >= pair[p].begin + pair[p].columns)) ++p;
    return p;
  }
};

// kWarpsM x kWarpsN consumers, each 16 kMTiles tokens x 8 kNTiles weight rows; stages of 64 kCols of the contraction.
template <int kMTiles_, int kWarpsM_, int kNTiles_, int kWarpsN_, int kCols_>
struct StreamShape {
  static constexpr int kMTiles = kMTiles_, kWarpsM = kWarpsM_, kNTiles = kNTiles_, kWarpsN = kWarpsN_, kCols = kCols_;
  static constexpr int kTokens = 16 * kMTiles * kWarpsM, kDepth = 64 * kCols;
  static constexpr int kThreads = 32 * (1 + kWarpsM * (kWarpsN + 1));
  static constexpr int kPieceRows = kTokens * kCols / kCluster < 8 ? 8 : kTokens * kCols / kCluster;  // of x, a block's
  static constexpr int kColumnBytes = 128 * kTokens;  // of 64 columns of x
  // LoRA: pieces of A in shared memory; two fewer are on their way.
  static constexpr int kPieces = kCols == 1 ? 10 : kCols == 2 ? 6 : 4;
};

// Places in shared memory, bytes from a multiple of 1024.
struct StreamLayout {
  uint32_t stage = 0, barriers = 0, rstd = 0, norm = 0, h = 0, a = 0, b = 0, total = 0;

  template <class S>
  static __host__ __device__ StreamLayout of(const StreamArgs& args) {
    StreamLayout at;
    at.stage = S::kCols * (S::kColumnBytes + 128 * args.weight_rows());
    at.barriers = at.stage * args.stages;
    at.rstd = at.barriers + 16 * kMostStages;
    at.norm = at.rstd + 4 * S::kTokens;
    at.h = at.norm + (args.norm_weight ? 4 * ((args.depth + 255) / 256 * 256) : 0);
    at.a = at.h + (args.num_pairs ? 2 * S::kTokens * kSlotStride : 0);
    at.b = at.a + (args.num_pairs ? S::kWarpsM * S::kPieces * S::kDepth * 16 : 0);
    at.total = at.b + (args.num_pairs ? args.weight_rows() / 8 * args.most_slots * 16 : 0);
    return at;
  }
};

// A position in the ring.
struct Slot {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What every warp of a block knows.
template <class S>
struct StreamBlock {
  const StreamArgs& args;
  StreamLayout at;
  uint8_t* memory;  // the same place as `shared`
  uint32_t shared;
  uint32_t rank;
  int steps, n0;
  int lane, warp;

  __device__ uint32_t full(int stage) const { return shared + at.barriers + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + at.barriers + 8 * (kMostStages + stage); }
  __device__ uint32_t stage_at(int stage) const { return shared + stage * at.stage; }
  __device__ int consumers() const { return S::kWarpsM * args.warps_n; }
  // Whether this block's LoRA warps have a column tile of h.
  __device__ bool shrinks(uint32_t block) const { return static_cast<int>(block) * 8 < args.slots; }
};

// ---- norm ----

// The sum of squares of a row as rmsnorm.cu forms it with `threads` threads per row (four pieces of 8 each), by one
// warp.
__device__ __forceinline__ float sum_of_squares(const bf16* row, int width, int threads, int lane) {
  float sum = 0;
#pragma unroll 4
  for (int warp = 0; warp < threads / 32; ++warp) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = 8 * (32 * warp + lane + j * threads);
      const uint4 v = column < width ? *reinterpret_cast<const uint4*>(row + column) : uint4{0, 0, 0, 0};
      const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = __uint_as_float(word[i] << 16), high = __uint_as_float(word[i] & 0xffff0000u);
        squares = __fmaf_rn(high, high, __fmaf_rn(low, low, squares));
      }
    }
    squares = warp_sum(squares);
    sum = warp == 0 ? squares : __fadd_rn(sum, squares);
  }
  return sum;
}

// A block of the cluster takes every eighth row and tells the others.
template <class S>
__device__ void prepare_norm(const StreamBlock<S>& block, int warp, int warps) {
  const StreamArgs& args = block.args;
  auto* const weight = reinterpret_cast<float*>(block.memory + block.at.norm);
  for (int k = 32 * warp + block.lane; k < (args.depth + 255) / 256 * 256; k += 32 * warps)
    weight[k] = k < args.depth ? args.norm_weight[k] : 0;
  const int threads = args.depth <= 1024 ? 32 : args.depth <= 4096 ? 128 : 512;
  for (int row = static_cast<int>(block.rank) + kCluster * warp; row < args.rows; row += kCluster * warps) {
    const float sum = sum_of_squares(args.x + row * args.x_stride, args.depth, threads, block.lane);
    const float mean = __fdiv_rn(sum, static_cast<float>(args.depth));
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, args.norm_eps)));
    if (block.lane < kCluster) store_in(block.shared + block.at.rstd + 4 * row, block.lane, __float_as_uint(rstd));
  }
  cluster_arrive();
  cluster_wait();
}

__device__ __forceinline__ uint32_t normalized(uint32_t pair, float rstd, float2 weight) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  return pack_bf16(__fmul_rn(__fmul_rn(low, rstd), weight.x), __fmul_rn(__fmul_rn(high, rstd), weight.y));
}

// ---- the walk along K ----

// A fragments of 32 of K: [group of 16][tile of 16 rows].
template <class S>
using XFragments = uint32_t[2][S::kMTiles][4];

template <class S>
struct XReader {
  const StreamBlock<S>& block;
  int m0;       // first row of this warp
  uint32_t at;  // of this lane's address in a stage, group 0
  float rstd[S::kMTiles][2];

  __device__ XReader(const StreamBlock<S>& b, int warp_m) : block(b), m0(16 * S::kMTiles * warp_m) {
    // 128 bytes of a row; the copy engine has exchanged its 16-byte chunks by the row's last three bits.
    at = 128 * (m0 + b.lane % 16) + 16 * ((b.lane / 16) ^ (b.lane % 8));
  }
  // Behind the second barrier of the cluster.
  __device__ void read_rstd() {
    const auto* const all = reinterpret_cast<const float*>(block.memory + block.at.rstd);
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
      rstd[i][0] = all[m0 + 16 * i + block.lane / 4], rstd[i][1] = all[m0 + 16 * i + block.lane / 4 + 8];
  }
  __device__ __forceinline__ void load(XFragments<S>& x, uint32_t stage, int chunk) const {
#pragma unroll
    for (int group = 0; group < 2; ++group)
#pragma unroll
      for (int i = 0; i < S::kMTiles; ++i)
        load_matrices(x[group][i],
                      (stage + chunk / 2 * S::kColumnBytes + 2048 * i + at) ^ (64 * (chunk % 2) + 32 * group));
  }
  __device__ __forceinline__ void normalize(XFragments<S>& x, int k) const {
    const auto* const weight = reinterpret_cast<const float*>(block.memory + block.at.norm) + k + 2 * (block.lane % 4);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const float2 low = *reinterpret_cast<const float2*>(weight + 16 * group),
                   high = *reinterpret_cast<const float2*>(weight + 16 * group + 8);
#pragma unroll
      for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[group][i][e] = normalized(x[group][i][e], rstd[i][e % 2], e / 2 ? high : low);
    }
  }
};

// All of K. `weights` has kTiles, begin(step) before the first fragments of a step, load(fragments, stage, chunk), and
// end(acc, step) after a step's products; the fragments of 32 of K are loaded while those before are multiplied.
template <class S, bool kNorm, class Weights>
__device__ __forceinline__ void walk(float (&acc)[S::kMTiles][Weights::kTiles][4], const StreamBlock<S>& block,
                                     const XReader<S>& reader, Weights& weights) {
  constexpr int kChunks = 2 * S::kCols;
  XFragments<S> x[2];
  uint32_t w[2][Weights::kTiles][4];
  const auto begin = [&](int step, const Slot& slot) {
    weights.begin(step);
    barrier_wait(block.full(slot.stage), slot.parity);
    reader.load(x[0], block.stage_at(slot.stage), 0);
    weights.load(w[0], block.stage_at(slot.stage), 0);
  };
  Slot slot;
  begin(0, slot);
  if constexpr (kNorm) reader.normalize(x[0], 0);
  for (int step = 0; step < block.steps; ++step) {
    const int stage = slot.stage;
    slot.next(block.args.stages);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int now = chunk % 2, then = 1 - now;
      const bool last = chunk + 1 == kChunks;
      if (!last) {
        reader.load(x[then], block.stage_at(stage), chunk + 1);
        weights.load(w[then], block.stage_at(stage), chunk + 1);
      } else if (step + 1 < block.steps) {
        begin(step + 1, slot);
      }
#pragma unroll
      for (int group = 0; group < 2; ++group)
#pragma unroll
        for (int j = 0; j < Weights::kTiles; ++j)
          if (weights.has(j))
#pragma unroll
            for (int i = 0; i < S::kMTiles; ++i)
              mma_16816(acc[i][j], x[now][group][i], {w[now][j][2 * group], w[now][j][2 * group + 1]});
      if constexpr (kNorm)
        if (!last || step + 1 < block.steps) reader.normalize(x[then], step * S::kDepth + 32 * (chunk + 1));
    }
    __syncwarp();
    if (block.lane < kCluster) barrier_arrive_in(block.empty(stage), block.lane);
    weights.end(acc, step);
  }
}

}  // namespace lockstep::kernels::cuda
