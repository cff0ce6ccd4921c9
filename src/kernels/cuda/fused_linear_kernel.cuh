// How few rows meet many weights: clusters of eight blocks, one wave of them. A block owns some columns of y and walks
// all of K through a ring of stages in shared memory, filled by the copy engine. Each block brings its own weights and
// an eighth of x, which the engine hands to the whole cluster.
//   warp 0       fills the ring; the weights of the first stages before the kernel before this one has ended
//   consumers    one chain per output, fragments loaded one step ahead. Norm: x is normalized in registers
//   LoRA warps   see the same x go by and keep 8 columns of h = x A per block of the cluster; at the end every block
//                has all of h in shared memory, and the consumers add scale h B to their rounded outputs
// Bits: those of rmsnorm.cu, linear_small.cu, lora.cu and swiglu.cu, whose arithmetic this repeats step by step.
#pragma once

#include "kernels/cuda/fused_linear_block.cuh"

namespace lockstep::kernels::cuda {

// ---- warp 0 ----

template <class S>
__device__ void fill_ring(const StreamBlock<S>& block) {
  const StreamArgs& args = block.args;
  constexpr int kPerColumn = S::kTokens / S::kPieceRows;
  const int halves = args.swiglu ? 2 : 1, half_rows = args.block_columns;
  const int pieces = (args.rows + S::kPieceRows - 1) / S::kPieceRows;
  const uint32_t bytes = 128 * S::kCols * (pieces * S::kPieceRows + args.weight_rows());
  const int rank = static_cast<int>(block.rank), my_column = rank / kPerColumn, my_piece = rank % kPerColumn;
  const bool brings_x = my_column < S::kCols && my_piece < pieces;

  const auto load_weights = [&](int step, int stage) {
    const uint32_t w = block.stage_at(stage) + S::kCols * S::kColumnBytes;
    barrier_expect(block.full(stage), bytes);
    for (int c = 0; c < S::kCols; ++c)
      for (int half = 0; half < halves; ++half)
        copy_box(w + 128 * (c * args.weight_rows() + half * half_rows), args.w_map, step * S::kDepth + 64 * c,
                 block.n0 + half * args.outputs, block.full(stage));
  };
  const auto load_x = [&](int step, int stage) {
    const int row = my_piece * S::kPieceRows;
    if (brings_x)
      copy_box_to((1 << kCluster) - 1, block.stage_at(stage) + my_column * S::kColumnBytes + 128 * row, args.x_map,
                  step * S::kDepth + 64 * my_column, row, block.full(stage));
  };
  const int first = block.steps < args.stages ? block.steps : args.stages;
  if (block.lane == 0)
    for (int step = 0; step < first; ++step) load_weights(step, step);
  __syncwarp();
  grid_wait();
  cluster_wait();
  if (block.lane == 0)
    for (int step = 0; step < first; ++step) load_x(step, step);
  __syncwarp();
  if (args.norm_weight) cluster_arrive(), cluster_wait();
  Slot slot;
  for (int step = first; step < block.steps; ++step, slot.next(args.stages)) {
    barrier_wait(block.empty(slot.stage), slot.parity);
    if (block.lane == 0) load_weights(step, slot.stage), load_x(step, slot.stage);
    __syncwarp();
  }
}

// ---- LoRA warps ----

template <class S>
struct ShrinkWeights {
  static constexpr int kTiles = 1;
  const StreamBlock<S>& block;
  uint32_t ring;  // of this warp: [piece][k][8 columns]
  const bf16* a;
  int rank;
  bool inside;       // columns beyond the rank are zeros
  uint32_t now = 0;  // the piece of the current step
  float sum[S::kMTiles][4] = {};

  __device__ ShrinkWeights(const StreamBlock<S>& b, int warp_m) : block(b) {
    ring = b.shared + b.at.a + warp_m * S::kPieces * S::kDepth * 16;
    const int slot = static_cast<int>(b.rank) * 8;
    int p = 0;
    while (p + 1 < b.args.num_pairs && slot >= b.args.pair[p + 1].first_slot) ++p;
    const StreamPair& pair = b.args.pair[p];
    rank = pair.rank;
    inside = slot - pair.first_slot < rank;
    a = pair.a + (inside ? slot - pair.first_slot : 0);
  }
  __device__ void copy(int step) const {
    const uint32_t to = ring + step % S::kPieces * S::kDepth * 16;
#pragma unroll
    for (int i = block.lane; i < S::kDepth; i += 32) {
      const int k = step * S::kDepth + i;
      const bool valid = inside && k < block.args.depth;
      copy_async_16(to + 16 * i, valid ? a + int64_t{k} * rank : a, valid);
    }
  }
  __device__ __forceinline__ bool has(int) const {
    return true;
  }
  __device__ __forceinline__ void begin(int step) {
    // Into the place of the step before the last one: nobody reads it any more.
    const int next = step + S::kPieces - 2;
    if (next < block.steps) copy(next);
    copy_commit();
    copy_wait<S::kPieces - 2>();
    __syncwarp();
    now = ring + step % S::kPieces * S::kDepth * 16;
  }
  __device__ __forceinline__ void load(uint32_t (&w)[1][4], uint32_t, int chunk) const {
    load_matrices_trans(w[0], now + 16 * (32 * chunk + block.lane));
  }
  __device__ __forceinline__ void end(float (&acc)[S::kMTiles][1][4], int step) {
    if ((step + 1) * S::kDepth % kShrinkSegment != 0 && step + 1 != block.steps) return;
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][e] = __fadd_rn(sum[i][e], acc[i][0][e]), acc[i][0][e] = 0;
  }
};

// This block's columns of B, [tile of 8 columns][slot][8], for the consumers' ends.
template <class S>
__device__ void copy_expand_weights(const StreamBlock<S>& block, int thread) {
  const StreamArgs& args = block.args;
  const int tiles = args.weight_rows() / 8, half_tiles = args.block_columns / 8;
  for (int i = thread; i < tiles * args.most_slots; i += 32 * S::kWarpsM) {
    const int tile = i / args.most_slots, slot = i % args.most_slots;
    const int column = block.n0 + tile % half_tiles * 8 + (tile < half_tiles ? 0 : args.outputs);
    const int p = args.pair_of(column);
    const bool valid = p < args.num_pairs && slot < args.pair[p].rank;
    const bf16* const b = args.pair[valid ? p : 0].b;
    copy_async_16(block.shared + block.at.b + 16 * i,
                  valid ? b + int64_t{slot} * args.pair[p].columns + (column - args.pair[p].begin) : b, valid);
  }
}

template <class S, bool kNorm>
__device__ void shrink(const StreamBlock<S>& block, int warp_m) {
  XReader<S> reader(block, warp_m);
  ShrinkWeights<S> weights(block, warp_m);
  const bool has_tile = block.shrinks(block.rank);
  for (int step = 0; step < S::kPieces - 2; ++step) {
    if (has_tile && step < block.steps) weights.copy(step);
    if (step == S::kPieces - 3) copy_expand_weights(block, 32 * warp_m + block.lane);
    copy_commit();
  }
  if constexpr (kNorm) {
    prepare_norm(block, block.warp - 1, block.consumers() + S::kWarpsM);
    reader.read_rstd();
  }
  if (has_tile) {
    float acc[S::kMTiles][1][4] = {};
    walk<S, kNorm>(acc, block, reader, weights);
    const uint32_t column = block.shared + block.at.h + 2 * (8 * block.rank + 2 * (block.lane % 4));
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t word = pack_bf16(weights.sum[i][2 * half], weights.sum[i][2 * half + 1]);
        const int row = reader.m0 + 16 * i + block.lane / 4 + 8 * half;
        for (uint32_t to = 0; to < kCluster; ++to) store_in(column + 2 * row * kSlotStride, to, word);
      }
  }
  copy_wait<0>();
  cluster_arrive();
  cluster_wait();
}

// ---- consumers ----

template <class S>
struct ProductWeights {
  static constexpr int kTiles = S::kNTiles;
  uint32_t at[kTiles];  // of this lane's address in a stage
  int column_bytes;     // of 64 columns of the weights
  int count;

  __device__ __forceinline__ bool has(int tile) const { return kTiles == 1 || tile < count; }
  __device__ __forceinline__ void begin(int) const {}
  __device__ __forceinline__ void load(uint32_t (&w)[kTiles][4], uint32_t stage, int chunk) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      if (has(j)) load_matrices(w[j], (stage + chunk / 2 * column_bytes + at[j]) ^ (64 * (chunk % 2)));
  }
  __device__ __forceinline__ void end(float (&)[S::kMTiles][kTiles][4], int) const {}
};

// swiglu.cu
__device__ __forceinline__ float swiglu_of(float gate, float up) {
  const float sigmoid = __fdividef(1.0f, __fadd_rn(1.0f, __expf(-gate)));
  return __fmul_rn(__fmul_rn(gate, sigmoid), up);
}

// One warp's columns: its tiles of y, and of the gate and up that become them. Tile j of the warp holds 8 columns of y,
// or with SwiGLU of gate (the first half of the tiles) or up.
template <class S>
struct Consumer {
  const StreamBlock<S>& block;
  int m0, first_tile, tiles;  // tiles of y
  float acc[S::kMTiles][S::kNTiles][4] = {};
  uint32_t residual[S::kMTiles][S::kNTiles][2];

  static constexpr int kHalf = S::kNTiles / 2;

  __device__ Consumer(const StreamBlock<S>& b) : block(b) {
    const int warp = b.warp - 1, all = b.args.block_columns / 8;
    m0 = 16 * S::kMTiles * (warp % S::kWarpsM);
    first_tile = warp / S::kWarpsM * b.args.tiles_per_warp;
    tiles = all - first_tile < b.args.tiles_per_warp ? all - first_tile : b.args.tiles_per_warp;
  }
  __device__ bool has(int j) const { return (block.args.swiglu && j >= kHalf ? j - kHalf : j) < tiles; }
  // The tile of a stage's weights.
  __device__ int weight_tile(int j) const {
    if (!block.args.swiglu) return first_tile + j;
    return first_tile + (j < kHalf ? j : j - kHalf + block.args.block_columns / 8);
  }
  // The column of y of this thread's first value, of the product's when `up`.
  __device__ int column(int j) const {
    return block.n0 + 8 * (first_tile + (block.args.swiglu && j >= kHalf ? j - kHalf : j)) + 2 * (block.lane % 4);
  }
  __device__ int row(int i, int half) const { return m0 + 16 * i + block.lane / 4 + 8 * half; }
  __device__ bool stored(int i, int j, int half) const {
    return has(j) && row(i, half) < block.args.rows && column(j) < block.args.outputs;
  }

  __device__ ProductWeights<S> weights() const {
    ProductWeights<S> w;
    w.column_bytes = 128 * block.args.weight_rows();
    // The tiles of a warp that has fewer: with SwiGLU they are in the middle, so all are computed.
    w.count = block.args.swiglu ? S::kNTiles : tiles;
    const int lane = block.lane;
#pragma unroll
    for (int j = 0; j < S::kNTiles; ++j)
      w.at[j] = S::kCols * S::kColumnBytes + 128 * (8 * (has(j) ? weight_tile(j) : first_tile) + lane % 8) +
                16 * ((lane / 8) ^ (lane % 8));
    return w;
  }

  // Loaded at the start: at the end nothing else would hide how long it takes.
  __device__ void load_residual() {
    const ProductEnd& end = block.args.end;
    const auto* const from = static_cast<const bf16*>(end.residual);
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < S::kNTiles; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          residual[i][j][half] =
              from && !end.y_f32 && stored(i, j, half)
                  ? *reinterpret_cast<const uint32_t*>(from + row(i, half) * end.residual_stride + column(j))
                  : 0;
  }

  // linear_forward's y, before the adapter: in place, rounded to bf16 unless y is f32.
  __device__ void finish_base() {
    const ProductEnd& end = block.args.end;
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < S::kNTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float value = acc[i][j][e];
          const int n = column(j) + e % 2 + (block.args.swiglu && j >= kHalf ? block.args.outputs : 0);
          if (end.bias && stored(i, j, e / 2)) value = __fadd_rn(value, end.bias[n]);
          if (end.residual && end.y_f32) {
            if (stored(i, j, e / 2))
              value =
                  __fadd_rn(value, static_cast<const float*>(end.residual)[row(i, e / 2) * end.residual_stride + n]);
          } else if (end.residual) {
            const uint32_t word = residual[i][j][e / 2];
            value = __fadd_rn(value, __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16));
          }
          acc[i][j][e] = end.y_f32 ? value : __bfloat162float(__float2bfloat16_rn(value));
        }
  }

  // lora_expand: the chain over the ranks, scaled, added to what is rounded, rounded again.
  __device__ void add_adapter() {
    const StreamArgs& args = block.args;
    const int lane = block.lane;
    const uint32_t h = block.shared + block.at.h + 2 * ((m0 + lane % 16) * kSlotStride + lane / 16 * 8);
#pragma unroll
    for (int j = 0; j < S::kNTiles; ++j) {
      if (!has(j)) continue;
      const int p = args.pair_of(column(j) - 2 * (lane % 4) + (args.swiglu && j >= kHalf ? args.outputs : 0));
      if (p == args.num_pairs) continue;
      const StreamPair& pair = args.pair[p];
      const uint32_t b = block.shared + block.at.b + 16 * (weight_tile(j) * args.most_slots + lane % 16);
      float more[S::kMTiles][4] = {};
      for (int slot = 0; slot < pair.slots; slot += 16) {
        uint32_t w[2];
        load_matrices_trans(w, b + 16 * slot);
#pragma unroll
        for (int i = 0; i < S::kMTiles; ++i) {
          uint32_t x[4];
          load_matrices(x, h + 2 * (16 * i * kSlotStride + pair.first_slot + slot));
          mma_16816(more[i], x, w);
        }
      }
#pragma unroll
      for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float sum = __fadd_rn(0.0f, __fmul_rn(pair.scale, more[i][e]));
          acc[i][j][e] = __bfloat162float(__float2bfloat16_rn(__fadd_rn(acc[i][j][e], sum)));
        }
    }
  }

  __device__ void store() const {
    const ProductEnd& end = block.args.end;
#pragma unroll
    for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < S::kNTiles; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!stored(i, j, half) || (block.args.swiglu && j >= kHalf)) continue;
          const int64_t at = row(i, half) * end.y_stride + column(j);
          float low = acc[i][j][2 * half], high = acc[i][j][2 * half + 1];
          if (S::kNTiles > 1 && block.args.swiglu) {
            constexpr int kUp = S::kNTiles > 1 ? kHalf : 0;
            low = swiglu_of(low, acc[i][(j + kUp) % S::kNTiles][2 * half]);
            high = swiglu_of(high, acc[i][(j + kUp) % S::kNTiles][2 * half + 1]);
          }
          if (end.y_f32)
            *reinterpret_cast<float2*>(static_cast<float*>(end.y) + at) = make_float2(low, high);
          else
            *reinterpret_cast<uint32_t*>(static_cast<bf16*>(end.y) + at) = pack_bf16(low, high);
        }
  }
};

template <class S, bool kNorm>
__device__ void consume(const StreamBlock<S>& block) {
  Consumer<S> mine(block);
  XReader<S> reader(block, (block.warp - 1) % S::kWarpsM);
  mine.load_residual();
  if constexpr (kNorm) {
    prepare_norm(block, block.warp - 1, block.consumers() + (block.args.num_pairs ? S::kWarpsM : 0));
    reader.read_rstd();
  }
  ProductWeights<S> weights = mine.weights();
  walk<S, kNorm>(mine.acc, block, reader, weights);
  cluster_arrive();
  mine.finish_base();
  cluster_wait();
  if (block.args.num_pairs) mine.add_adapter();
  mine.store();
}

template <class S, bool kNorm>
__global__ void __launch_bounds__(S::kThreads) stream_kernel(const __grid_constant__ StreamArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) uint8_t unaligned[];
  const uint32_t base = shared_address(unaligned), shared = (base + 1023) / 1024 * 1024;
  const int thread = static_cast<int>(threadIdx.x);
  const StreamBlock<S> block{.args = args,
                             .at = StreamLayout::of<S>(args),
                             .memory = unaligned + (shared - base),
                             .shared = shared,
                             .rank = cluster_rank(),
                             .steps = (args.depth + S::kDepth - 1) / S::kDepth,
                             .n0 = static_cast<int>(blockIdx.x) * args.block_columns,
                             .lane = thread % 32,
                             .warp = thread / 32};
  if (thread == 0) {
    prefetch_map(args.w_map);
    prefetch_map(args.x_map);
    const int shrinking = (args.slots + 7) / 8 * S::kWarpsM;
    for (int stage = 0; stage < args.stages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init(block.empty(stage), kCluster * block.consumers() + shrinking);
    }
    barrier_init_fence();
  }
  grid_let_next_start();
  cluster_arrive();
  if (block.warp == 0) {
    fill_ring(block);
    cluster_arrive();
    cluster_wait();
    return;
  }
  grid_wait();
  cluster_wait();
  if (block.warp <= block.consumers())
    consume<S, kNorm>(block);
  else
    shrink<S, kNorm>(block, block.warp - 1 - block.consumers());
#endif
}

}  // namespace lockstep::kernels::cuda
