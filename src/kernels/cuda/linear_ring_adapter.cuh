// An adapter inside a matmul of linear_ring: y += scale h B, h = x A, in the launch of the base's matmul. The first
// blocks of the grid compute h, 16 columns of it for some tokens each, through rings of their own. The others meanwhile
// compute the base's matmul; then the warp that fills their ring waits until h is complete, and the others add h B.
//
// Blocks start in the order of their indices, and those of h wait for no other block, so the launch always finishes,
// however few multiprocessors there are. Should that ever fail, it aborts after kMaxWaitedCycles instead of hanging.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_ring.cuh"

namespace lockstep::kernels::cuda {

struct RingPair {
  const bf16* b;
  int rank, out_begin, outputs, h_begin, first_block;
  int ranks_each;  // of each adapter (RankRows)
  float scale;
};
struct RingAdapter {
  CUtensorMap x;
  CUtensorMap a[kMaxInner];
  RingPair pair[kMaxInner];
  int count, column_blocks, blocks;  // column blocks of h; blocks that compute h in total
  bf16* h;
  int h_stride;
  bool expand;
  const int2* rank_rows;  // begin and end of each adapter's rows; nullptr: one adapter
  uint32_t* counters;     // number of h blocks that have finished; number of blocks that have seen it
};
// For pairs whose h B is added here, of at most 16 kGroups ranks. Even code that is not executed costs time: a layer's
// kernels share the instruction cache, and a kernel that must be fetched from memory again takes a microsecond longer.
template <int kGroups_>
struct RanksAdapter : RingAdapter {
  static constexpr int kGroups = kGroups_;
};
struct NoAdapter {
  static constexpr int blocks = 0, kGroups = 0;
};
template <class Adapter>
inline constexpr bool kHasAdapter = Adapter::kGroups > 0;

// launch(the adapter, with kGroups as a constant that its ranks need)
template <class Launch>
void with_groups(const RingAdapter& adapter, const Launch& launch) {
  int most = 0;
  for (int i = 0; i < adapter.count; ++i) most = std::max(most, adapter.pair[i].rank);
  if (most <= 16 || !adapter.expand) return launch(RanksAdapter<1>{adapter});
  if (most <= 32) return launch(RanksAdapter<2>{adapter});
  launch(RanksAdapter<kMaxStackedRank / 16>{adapter});
}

// Blocks of h have fewer tokens than those of the base, so that h is complete before the base's matmul ends.
template <class S, int kMaxTokens>
using InnerShape = Shape<(S::kTokens < kMaxTokens ? S::kTokens : kMaxTokens), kInnerColumns, 4>;

// Shape: of the blocks that compute h.
template <class Shape>
RingAdapter ring_adapter(const Operand& x, const LoraShrinks& inner) {
  RingAdapter adapter{};
  adapter.x = box_map(x, kBoxColumns, Shape::kTokens);
  int column = 0;
  for (const LoraPair& pair : inner.pairs) {
    const int i = adapter.count++, rank = static_cast<int>(pair.rank());
    adapter.a[i] = box_map(operand(pair.a), kBoxColumns, kInnerColumns);
    adapter.pair[i] = {.b = data_of<bf16>(pair.b),
                       .rank = rank,
                       .out_begin = static_cast<int>(pair.out_begin),
                       .outputs = static_cast<int>(pair.b[1]),
                       .h_begin = column,
                       .first_block = adapter.column_blocks,
                       .ranks_each = static_cast<int>(pair.rank() / pair.rank_rows.adapters),
                       .scale = pair.scale};
    column += rank;
    adapter.column_blocks += (rank + kInnerColumns - 1) / kInnerColumns;
  }
  adapter.blocks = static_cast<int>(inner.blocks(x.rows, Shape::kTokens));
  adapter.h = inner.h, adapter.h_stride = static_cast<int>(inner.h_stride);
  adapter.rank_rows = reinterpret_cast<const int2*>(inner.pairs.front().rank_rows.rows);
  adapter.expand = inner.expand, adapter.counters = inner.counters;
  return adapter;
}

// ---- computing h ----

// The rows in which a group of 16 columns of h is not 0 (RankRows).
struct InnerRows {
  int begin, end;

  __device__ static InnerRows of(const RingAdapter& adapter, const RingPair& pair, int column, int64_t tokens) {
    if (adapter.rank_rows == nullptr) return {0, static_cast<int>(tokens)};
    const int2 rows = adapter.rank_rows[column / pair.ranks_each];
    return {rows.x, rows.y};
  }
  __device__ bool has(int token) const { return token >= begin && token < end; }
  __device__ bool meets(int first, int tokens) const { return first < end && first + tokens > begin; }
};

// S: an InnerShape. Only the first warp's 16 outputs of the tile are used. kLoader: the launch's last warp.
template <class S, int kLoader = kWarpgroup / 32>
__device__ void make_inner(const RingAdapter& adapter, int64_t tokens, int64_t depth, const uint8_t* shared, int warp,
                           int lane) {
  const int block = static_cast<int>(blockIdx.x) % adapter.column_blocks;
  const int first_token = static_cast<int>(blockIdx.x) / adapter.column_blocks * S::kTokens;
  int p = 0;
  while (p + 1 < adapter.count && block >= adapter.pair[p + 1].first_block) ++p;
  const RingPair& pair = adapter.pair[p];
  const int column = (block - pair.first_block) * kInnerColumns;
  const InnerRows rows = InnerRows::of(adapter, pair, column, tokens);
  const CopyRing ring = begin_ring<S>(shared);
  const int steps = rows.meets(first_token, S::kTokens) ? S::steps(depth) : 0;
  if (warp == kLoader) {
    if (lane == 0) fill_with_boxes<S>(ring, adapter.x, first_token, adapter.a[p], column, kInnerColumns, steps);
    return;
  }
  if (kLoader > kWarpgroup / 32 && warp >= kWarpgroup / 32) return;
  wait_for_previous();
  float acc[S::kTokenTiles][4] = {};
  accumulate_ring<S>(acc, steps, ring, warp, lane);
  if (warp != 0) return;
  const Place place = Place::of(0, pair.rank - column, first_token, warp, lane);
  bf16* const h = adapter.h + pair.h_begin + column;
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (place.stored(tokens, j, e))
        h[place.token_of(j, e) * adapter.h_stride + place.output_of(e)] =
            __float2bfloat16_rn(rows.has(place.token_of(j, e)) ? acc[j][e] : 0.0f);
  if (!adapter.expand) return;
  __threadfence();
  __syncwarp();
  if (lane == 0) atomicAdd(adapter.counters, 1u);
}

// Waits until h is complete. Called in each of the `others` blocks of kThreads, by the warp that fills the ring and by
// the rest.
template <int kThreads>
__device__ __forceinline__ void announce_inner(const RingAdapter& adapter, uint32_t others) {
  __syncwarp();
  if (!adapter.expand) return;
  constexpr int64_t kMaxWaitedCycles = int64_t{1} << 36;  // half a minute
  const int64_t begin = clock64();
  const auto ended = [&] {
    uint32_t count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(count) : "l"(adapter.counters) : "memory");
    return count;
  };
  while (ended() < static_cast<uint32_t>(adapter.blocks))
    if (clock64() - begin > kMaxWaitedCycles) __trap();
  asm volatile("bar.arrive 1, %0;\n" ::"n"(kThreads) : "memory");
  // The last block that sees the count resets both counters.
  if (threadIdx.x % 32 == 0 && atomicAdd(adapter.counters + 1, 1u) == others - 1)
    adapter.counters[0] = 0, adapter.counters[1] = 0;
}
template <int kThreads>
__device__ __forceinline__ void wait_for_inner() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// ---- adding h B ----

// The pair that contributes to an output, counted from this output; its rank is 0 if there is none.
struct DeltaOutput {
  const bf16 *b, *h;
  int stride = 0, rank = 0;
  float scale = 0;

  __device__ static DeltaOutput of(const RingAdapter& adapter, int64_t output) {
#pragma unroll 1
    for (int p = 0; p < adapter.count; ++p) {
      const RingPair& pair = adapter.pair[p];
      const auto at = static_cast<int>(output) - pair.out_begin;
      if (at >= 0 && at < pair.outputs)
        return {pair.b + at, adapter.h + pair.h_begin, pair.outputs, pair.rank, pair.scale};
    }
    return {adapter.pair[0].b, adapter.h};  // always readable memory
  }
  // Loads without branches: otherwise a thread would wait for each load before it issues the next.
  __device__ __forceinline__ uint16_t weight(int k) const {
    return __bfloat16_as_ushort(b[max(min(k, rank - 1), 0) * stride]);
  }
  // Ranks k and k + 1 of a row of h; beyond the pair's rank any values, because the weights there are zeros.
  __device__ __forceinline__ const bf16* inputs(int k) const {
    return h + max(min(k, rank - 2), 0);
  }
  // Extracts rank k or k + 1 from such a word.
  __device__ __forceinline__ uint32_t masked(uint32_t word, int k) const {
    return k < rank ? word : 0;
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
    if (!adapter.expand) output_[0].rank = output_[1].rank = 0;
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

  // Called when h is complete: y[j][e] becomes y + scale h B at token_of(j, e), output_of(e). The input is rounded to
  // the storage type, the sum is not.
  template <int kTokenTiles>
  __device__ __forceinline__ void add_to(float (&y)[kTokenTiles][4], const RingAdapter& adapter, int first_token,
                                         int64_t tokens, int lane) const {
    constexpr int kInputs = kApart ? 4 : 2;
    float d[kTokenTiles][4] = {}, other[kApart ? kTokenTiles : 1][4] = {};  // for the first output; for the second
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups_) break;
      const bf16* from[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) from[i] = output_[i / 2].inputs(rank_of(g, i % 2));
      uint32_t h[kTokenTiles][kInputs];
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        const int at = min(first_token + 8 * j + lane / 4, static_cast<int>(tokens) - 1) * adapter.h_stride;
#pragma unroll
        for (int i = 0; i < kInputs; ++i) h[j][i] = __ldcg(reinterpret_cast<const uint32_t*>(from[i] + at));
      }
      uint32_t b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[i] = output_[i % 2].masked(b_[g][i][0] | uint32_t{b_[g][i][1]} << 16, rank_of(g, i / 2));
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        mma_16816(d[j], b, {h[j][0], h[j][1]});
        if constexpr (kApart) mma_16816(other[j], b, {h[j][2], h[j][3]});
      }
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
  __device__ NoDelta(const NoAdapter&, int64_t, int64_t, int) {}
};
template <class Adapter, bool kApart>
using DeltaOf = std::conditional_t<kHasAdapter<Adapter>, TileDelta<kApart, Adapter::kGroups>, NoDelta>;

}  // namespace lockstep::kernels::cuda
