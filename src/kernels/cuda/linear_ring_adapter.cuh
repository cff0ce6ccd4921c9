// An adapter inside a matmul of linear_ring: y += scale h B, h = x A, in the launch of the base's matmul. The first
// blocks of the grid compute h, 16 columns of it for some tokens each, through rings of their own. The others meanwhile
// compute the base's matmul; the warp that fills their ring then receives h, and the others add h B.
//
// Blocks exchange h as words that show that they have arrived (waiting.cuh), two ranks of a token each: rounding makes
// no word with all bits set (NaN becomes 0x7fff). The last block to have received h writes zeros again. Where few
// blocks suffice each computes h itself (linear_ring_own_h.cu).
//
// Blocks start in the order of their indices, and those of h wait for no other block, so the launch always finishes,
// however few multiprocessors there are. Should that ever fail, it aborts after kMaxWaitedCycles instead of hanging.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_row_norm.cuh"
#include "kernels/cuda/waiting.cuh"

namespace lockstep::kernels::cuda {

inline constexpr uint32_t kTileBytes = 32 * sizeof(uint2);  // of 16 ranks of 8 tokens of h, on their way
inline constexpr uint32_t kReceivedTiles = 128;             // where the tiles begin in what a block has received of h

struct RingPair {
  const bf16* b;
  int rank, out_begin, outputs, h_begin, first_block;
  int ranks_each;  // of each adapter (RankRows)
  float scale;
};
struct RingAdapter {
  CUtensorMap x;
  CUtensorMap a[kMaxShrinks];
  RingPair pair[kMaxShrinks];
  int count, column_blocks, blocks;  // column blocks of h; blocks that compute h in total
  bf16* h;                           // where h is stored for another launch
  int h_stride;
  const int2* rank_rows;  // begin and end of each adapter's rows; nullptr: one adapter
  // From where the blocks of this launch receive h: [column block, tile of 8 tokens, kTileBytes], each tile as
  // mma_16816 takes it, a lane's two words together.
  uint2* h_exchange;
  int token_tiles;
  uint32_t* received;  // number of blocks that have received h
};
// For pairs whose h B is added here, of at most 16 kGroups ranks; 0: h is stored, for another launch. Even code that is
// not executed costs time: a layer's kernels share the instruction cache, and a kernel that must be fetched from memory
// again takes a microsecond longer.
template <int kGroups_>
struct RanksAdapter : RingAdapter {
  static constexpr int kGroups = kGroups_;
};
struct NoAdapter {
  static constexpr int blocks = 0, kGroups = 0;
};
template <class Adapter>
inline constexpr bool kHasAdapter = !std::is_same_v<Adapter, NoAdapter>;
template <class Adapter>
inline constexpr bool kExpands = Adapter::kGroups > 0;

// launch(the adapter, with kGroups as a constant that its ranks need)
template <class Launch>
void with_groups(const RingAdapter& adapter, const Launch& launch) {
  int most = 0;
  for (int i = 0; i < adapter.count; ++i) most = std::max(most, adapter.pair[i].rank);
  if (most <= 16) return launch(RanksAdapter<1>{adapter});
  if (most <= 32) return launch(RanksAdapter<2>{adapter});
  launch(RanksAdapter<kMaxStackedRank / 16>{adapter});
}

// Blocks of h have fewer tokens than those of the base, so that h is complete before the base's matmul ends.
template <class S, int kMaxTokens>
using HShape = Shape<(S::kTokens < kMaxTokens ? S::kTokens : kMaxTokens), kHColumns, 4, 1, S::kKeptColumns>;

// Shape: of the blocks that compute h; kBoxesOfA: as many boxes of A are copied at once.
template <class Shape, int kBoxesOfA = Shape::kBoxes>
RingAdapter ring_adapter(const Operand& x, const LoraShrinks& shrinks) {
  RingAdapter adapter{};
  adapter.x = x_map<Shape>(x);
  int column = 0;
  for (const LoraPair& pair : shrinks.pairs) {
    const int i = adapter.count++, rank = static_cast<int>(pair.rank());
    adapter.a[i] = boxes_map(operand(pair.a), kHColumns, kBoxesOfA);
    adapter.pair[i] = {.b = data_of<bf16>(pair.b),
                       .rank = rank,
                       .out_begin = static_cast<int>(pair.out_begin),
                       .outputs = static_cast<int>(pair.b[1]),
                       .h_begin = column,
                       .first_block = adapter.column_blocks,
                       .ranks_each = static_cast<int>(pair.rank() / pair.rank_rows.adapters),
                       .scale = pair.scale};
    column += rank;
    adapter.column_blocks += (rank + kHColumns - 1) / kHColumns;
  }
  adapter.blocks = static_cast<int>(shrinks.blocks(x.rows, Shape::kTokens));
  adapter.h = shrinks.h, adapter.h_stride = static_cast<int>(shrinks.h_stride);
  adapter.rank_rows = reinterpret_cast<const int2*>(shrinks.pairs.front().rank_rows.rows);
  adapter.h_exchange = shrinks.exchange.h, adapter.received = shrinks.exchange.received;
  adapter.token_tiles = static_cast<int>((x.rows + 7) / 8);
  return adapter;
}

// ---- computing h ----

// The rows in which a group of 16 columns of h is not 0 (RankRows).
struct HRows {
  int begin, end;

  __device__ static HRows of(const RingAdapter& adapter, const RingPair& pair, int column, int64_t tokens) {
    if (adapter.rank_rows == nullptr) return {0, static_cast<int>(tokens)};
    const int2 rows = adapter.rank_rows[column / pair.ranks_each];
    return {rows.x, rows.y};
  }
  __device__ bool has(int token) const { return token >= begin && token < end; }
  __device__ bool meets(int first, int tokens) const { return first < end && first + tokens > begin; }
};

// A lane's words of a tile of h as mma_16816 takes it. h: of ranks lane / 4 and lane / 4 + 8.
__device__ __forceinline__ uint2 words_of_h(const float (&h)[4]) {
  // Both of a lane's tokens of a rank -> both ranks of a token.
  return make_uint2(transposed_8x8(pack_bf16(h[0], h[1])), transposed_8x8(pack_bf16(h[2], h[3])));
}
// Stores tiles of h for the blocks that add h B. to: where the lane's words of the first tile go; count: of the tiles
// that exist.
template <int kTokenTiles>
__device__ __forceinline__ void send_h(uint2* to, const float (&h)[kTokenTiles][4], int count) {
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    const uint2 words = words_of_h(h[j]);
    if (j < count) store_relaxed(to + 32 * j, make_uint2(~words.x, ~words.y));
  }
}

// What a block computes of h: 16 columns for the tokens of S, an HShape.
template <class S>
struct HBlock {
  int pair, index, column, first_token;  // index: of the column block
  HRows rows;
  int steps;

  __device__ static HBlock of(const RingAdapter& adapter, int64_t tokens, int64_t depth) {
    const int index = static_cast<int>(blockIdx.x) % adapter.column_blocks;
    const int first_token = static_cast<int>(blockIdx.x) / adapter.column_blocks * S::kTokens;
    int p = 0;
    while (p + 1 < adapter.count && index >= adapter.pair[p + 1].first_block) ++p;
    const int column = (index - adapter.pair[p].first_block) * kHColumns;
    const HRows rows = HRows::of(adapter, adapter.pair[p], column, tokens);
    return {p, index, column, first_token, rows, rows.meets(first_token, S::kTokens) ? S::steps(depth) : 0};
  }
};

// Called by the warp that fills the ring.
template <class S>
__device__ __forceinline__ void load_h(const RingAdapter& adapter, const HBlock<S>& block, const uint8_t* shared,
                                       int lane) {
  if (lane == 0)
    fill_with_boxes<S>(ring_of<S>(shared), adapter.x, block.first_token, adapter.a[block.pair], block.column,
                       block.steps);
}

// Called by the other warps, of which the first four compute. Only the first warp's 16 outputs of the tile are used.
// kSends: h goes to the blocks of this launch, not to RingAdapter::h.
template <class S, bool kSends>
__device__ __forceinline__ void make_h(const RingAdapter& adapter, const HBlock<S>& block, int64_t tokens,
                                       const uint8_t* shared, int warp, int lane) {
  const RingPair& pair = adapter.pair[block.pair];
  if (warp >= kWarpgroup / 32) return;
  wait_for_previous();
  float acc[S::kTokenTiles][4] = {};
  accumulate_ring<S>(acc, block.steps, ring_of<S>(shared), warp, lane);
  if (warp != 0) return;
  const Place place = Place::of(0, pair.rank - block.column, block.first_token, warp, lane);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (place.output_of(e) >= place.end || !block.rows.has(static_cast<int>(place.token_of(j, e)))) acc[j][e] = 0;
  if constexpr (kSends) {
    const int first_tile = block.first_token / 8;
    return send_h(adapter.h_exchange + (block.index * adapter.token_tiles + first_tile) * 32 + lane, acc,
                  adapter.token_tiles - first_tile);
  }
  bf16* const h = adapter.h + pair.h_begin + block.column;
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (place.stored(tokens, j, e))
        h[place.token_of(j, e) * adapter.h_stride + place.output_of(e)] = __float2bfloat16_rn(acc[j][e]);
}

// A block of h; kLoader: the launch's last warp.
template <class S, bool kSends, int kLoader = kWarpgroup / 32>
__device__ void h_block(const RingAdapter& adapter, int64_t tokens, int64_t depth, const uint8_t* shared, int warp,
                        int lane) {
  const auto block = HBlock<S>::of(adapter, tokens, depth);
  begin_ring<S>(shared);
  if (warp == kLoader) return load_h<S>(adapter, block, shared, lane);
  make_h<S, kSends>(adapter, block, tokens, shared, warp, lane);
}

// ---- receiving h ----

// The column blocks of h that a block's outputs need, [begin, end): those of the pairs that add to outputs
// [first, first + count) or [first + apart, first + apart + count).
struct ColumnBlocks {
  int begin = 0, end = 0;

  __device__ static ColumnBlocks of(const RingAdapter& adapter, int first, int count, int apart) {
    ColumnBlocks all;
#pragma unroll 1
    for (int p = 0; p < adapter.count; ++p) {
      const RingPair& pair = adapter.pair[p];
      const int at = pair.out_begin - first;
      const auto meets = [&](int from) { return from < count && from + pair.outputs > 0; };
      if (!meets(at) && !meets(at - apart)) continue;
      if (all.end == 0) all.begin = pair.first_block;
      all.end = pair.first_block + (pair.rank + kHColumns - 1) / kHColumns;
    }
    return all;
  }
};

// The column blocks of h that a stage of a ring can hold.
template <class S>
constexpr int64_t received_blocks() {
  return (S::kStageBytes - kReceivedTiles) / HExchange::bytes_of_column_block(S::kTokens);
}
// The stage of a block's ring that its `steps` steps leave free first.
template <class S>
__device__ __forceinline__ CopyRing free_stage(CopyRing ring, int steps) {
  ring.stage = steps % S::kStages, ring.parity = steps / S::kStages & 1;
  return ring;
}

// A lane's part of the tiles of h that a warp loads together: four words of each. Half of a warp loads a tile. Kernels
// of 8 tokens have no more rows, so that the other half loads the tile of the next column block.
template <int kTokenTiles>
struct ArrivingTiles {
  static constexpr int kLoads = (kTokenTiles + 1) / 2, kColumnBlocks = kTokenTiles == 1 ? 2 : 1;
  uint4 words[kLoads];

  // count: of the tiles that exist.
  __device__ __forceinline__ void load(const uint4* from, int count, int half) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      words[i] = make_uint4(1, 1, 1, 1);
      if (2 * i + half < count) words[i] = load_relaxed(from + 32 * i);
    }
  }
  // Whether all of the warp's have arrived.
  __device__ __forceinline__ bool arrived() const {
    bool all = true;
#pragma unroll
    for (const uint4& w : words) all &= w.x != 0 && w.y != 0 && w.z != 0 && w.w != 0;
    return __all_sync(~0u, all);
  }
  __device__ __forceinline__ void store(uint32_t to, int count, int half) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (2 * i + half < count)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to + 2 * i * kTileBytes), "r"(~words[i].x),
                     "r"(~words[i].y), "r"(~words[i].z), "r"(~words[i].w)
                     : "memory");
  }
};

// Copies a block's part of h to a stage of its ring: the number of the first column block, then, from kReceivedTiles
// on, its tiles of tokens. Called in each of the `others` blocks by the warp that has filled the ring.
template <class S>
__device__ __forceinline__ void receive_h(const RingAdapter& adapter, const ColumnBlocks& needed, int first_token,
                                          const CopyRing& stage, uint32_t others, int lane) {
  using Tiles = ArrivingTiles<S::kTokenTiles>;
  static_assert(S::kStages > 1);  // the last step's stage is not released
  const int half = lane / 16, first_tile = first_token / 8;
  auto* const exchange = reinterpret_cast<uint4*>(adapter.h_exchange);
  __syncwarp();
  barrier_wait(stage.empty(), stage.parity ^ 1);
  const int64_t begin = clock64();
  if (lane == 0) asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(stage.at()), "r"(needed.begin) : "memory");
#pragma unroll 1
  for (int block = needed.begin; block < needed.end; block += Tiles::kColumnBlocks) {
    const int tile = (block - needed.begin) * S::kTokenTiles + half;
    const uint4* const from = exchange + (block * adapter.token_tiles + first_tile + half) * 16 + lane % 16;
    const int count = S::kTokenTiles == 1 ? needed.end - block : min(S::kTokenTiles, adapter.token_tiles - first_tile);
    Tiles tiles;
    tiles.load(from, count, half);
    while (!tiles.arrived()) {
      tiles.load(from, count, half);
      if (clock64() - begin > kMaxWaitedCycles) __trap();
    }
    tiles.store(stage.at() + kReceivedTiles + tile * kTileBytes + lane % 16 * 16, count, half);
  }
  asm volatile("bar.arrive 1, %0;\n" ::"n"(S::kThreads) : "memory");
  const uint32_t before = lane == 0 ? atomicAdd(adapter.received, 1u) : 0;
  if (__shfl_sync(~0u, before, 0) != others - 1) return;
#pragma unroll 1
  for (int i = lane; i < adapter.column_blocks * adapter.token_tiles * 16; i += 32)
    exchange[i] = make_uint4(0, 0, 0, 0);
  if (lane == 0) *adapter.received = 0;
}
template <int kThreads>
__device__ __forceinline__ void wait_for_h() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// ---- adding h B ----

// The pair that contributes to an output, counted from this output; its rank is 0 if there is none.
struct DeltaOutput {
  const bf16* b;
  int stride = 0, rank = 0, first_block = 0;
  float scale = 0;

  __device__ static DeltaOutput of(const RingAdapter& adapter, int64_t output) {
#pragma unroll 1
    for (int p = 0; p < adapter.count; ++p) {
      const RingPair& pair = adapter.pair[p];
      const auto at = static_cast<int>(output) - pair.out_begin;
      if (at >= 0 && at < pair.outputs) return {pair.b + at, pair.outputs, pair.rank, pair.first_block, pair.scale};
    }
    return {adapter.pair[0].b};  // always readable memory
  }
  // Loads without branches: otherwise a thread would wait for each load before it issues the next.
  __device__ __forceinline__ uint16_t weight(int k) const {
    return __bfloat16_as_ushort(b[max(min(k, rank - 1), 0) * stride]);
  }
  // Extracts rank k or k + 1 from such a word.
  __device__ __forceinline__ uint32_t masked(uint32_t word, int k) const {
    return k < rank ? word : 0;
  }
  // Where its ranks of group g lie among those received, counted in column blocks from `begin`; if it has none,
  // anywhere.
  __device__ __forceinline__ int received(int g, int begin) const {
    return max(first_block + g - begin, 0);
  }
  // What is added to y; `value` and `y` have been rounded to the storage type.
  __device__ __forceinline__ float add(float value, float delta) const {
    return rank > 0 ? __fadd_rn(__bfloat162float(__float2bfloat16_rn(value)), __fmaf_rn(scale, delta, 0.0f)) : value;
  }
};

// A thread's two outputs of its warp's tile of 16 (Place: output_of(0), output_of(2)). kApart: they are of two pairs.
template <bool kApart, int kGroups>
class TileDelta {
 public:
  // Called before the launch's x is available: starts loading B.
  __device__ TileDelta(const RingAdapter& adapter, int64_t first, int64_t second, int lane)
      : output_{DeltaOutput::of(adapter, first), DeltaOutput::of(adapter, second)}, k_(lane % 4 * 2) {
    groups_ = (max(output_[0].rank, output_[1].rank) + 15) / 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups_) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int k = 0; k < 2; ++k) b_[g][i][k] = output_[i % 2].weight(rank_of(g, i / 2) + k);
    }
  }

  // y[j][e] becomes y + scale h B. The input is rounded to the storage type, the sum is not. h: where the block has
  // received it (receive_h), or put it (linear_ring_own_h.cu).
  template <int kTokenTiles>
  __device__ __forceinline__ void add_to(float (&y)[kTokenTiles][4], uint32_t h, int lane) const {
    float d[kTokenTiles][4] = {}, other[kApart ? kTokenTiles : 1][4] = {};  // for the first output; for the second
    int begin;
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(begin) : "r"(h) : "memory");
    const uint32_t tiles = h + kReceivedTiles + lane * static_cast<uint32_t>(sizeof(uint2));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups_) break;
      uint32_t b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[i] = output_[i % 2].masked(b_[g][i][0] | uint32_t{b_[g][i][1]} << 16, rank_of(g, i / 2));
      const auto add_tiles = [&](float(&sums)[kTokenTiles][4], const DeltaOutput& output) {
        if (kGroups > 1 && g * kHColumns >= output.rank) return;  // 0 times another group's h need not be 0
        const uint32_t from = tiles + output.received(g, begin) * kTokenTiles * kTileBytes;
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          uint32_t ranks[2];
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
                       : "=r"(ranks[0]), "=r"(ranks[1])
                       : "r"(from + j * kTileBytes)
                       : "memory");
          mma_16816(sums[j], b, ranks);
        }
      };
      add_tiles(d, output_[0]);
      if constexpr (kApart) add_tiles(other, output_[1]);
    }
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        y[j][e] = output_[e / 2].add(y[j][e], kApart && e >= 2 ? other[kApart ? j : 0][e] : d[j][e]);
  }

 private:
  // The first of the thread's two ranks in one half of a group of 16.
  __device__ __forceinline__ int rank_of(int group, int half) const {
    return 16 * group + 8 * half + k_;
  }

  DeltaOutput output_[2];
  int k_, groups_;
  uint16_t b_[kGroups][4][2];  // as loaded; converted only at use, so that no load is waited for early
};

struct NoDelta {
  template <class Adapter>
  __device__ NoDelta(const Adapter&, int64_t, int64_t, int) {}
};
template <class Adapter, bool kApart>
using DeltaOf = std::conditional_t<kExpands<Adapter>, TileDelta<kApart, Adapter::kGroups>, NoDelta>;

}  // namespace lockstep::kernels::cuda
