// dk and dv on Hopper: the same sums in the same order as attention_backward.cu, computed with wgmma. One warpgroup
// loads. The others have 64 keys each and are not synchronized with each other, so that the exponentials of one overlap
// the matmuls of the other. They compute S^T = K Q^T, so P and dS stay in registers.
#include "kernels/cuda/attention_backward_wgmma.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kGroups = kComputingGroups;
// Registers per thread.
template <int kDim>
constexpr int kLoading = kDim == 64 ? 88 : 40;
template <int kDim>
constexpr int kComputing = kDim == 64 ? 208 : 232;
constexpr int kQueuedItems = 2;  // work items that may be queued ahead of the computing warpgroups

template <int kDim>
constexpr int kTileElements = kTileRows* kDim;

// Keys that several sequences share have the longest chains, so a CTA takes one tile of them at a time.
using KeyGroups = TileGroups<kGroups, true, true>;

// One work item of a CTA: tiles of keys.
struct Work {
  DeviceSequence sequence;
  int first, kv_head, present;  // kv_head is -1 after the last work item

  Work() = default;
  __device__ Work(const Tile& tile, int head, int tiles)
      : sequence(tile.sequence),
        first(tile.first),
        kv_head(head),
        present(min(sequence.rows - first, tiles * kTileRows)) {}
};
// A stage's tile of queries, as the computing warpgroups see it: QueryTiles.
struct StageQueries {
  int position, end_key, last;
  bf16* score_gradients;  // of these queries and the first tile of the keys' sequence, or nullptr
};

// A number for each query of a tile. Those of a lane, 8 n + 2 t and 8 n + 2 t + 1 for t = lane % 4, lie in 16 bytes
// each for two n: the matmuls alone nearly take what shared memory delivers.
struct QueryNumbers {
  float4 values[kTileRows / 4];

  __device__ __forceinline__ float& operator[](int query) {
    const int place = query / 16 * 16 + query % 8 / 2 * 4 + query % 16 / 8 * 2 + query % 2;
    return reinterpret_cast<float*>(values)[place];
  }
};
struct LaneNumbers {
  float4 values[4];

  __device__ __forceinline__ LaneNumbers(const QueryNumbers& from, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = from.values[4 * i + (lane & 3)];
  }
  // Of element e of the n-th tile of 8 queries, as an accumulator has them.
  __device__ __forceinline__ float of(int n, int e) const {
    const float4& four = values[n / 2];
    return n % 2 == 0 ? (e % 2 == 0 ? four.x : four.y) : (e % 2 == 0 ? four.z : four.w);
  }
};

template <int kDim>
struct Shared {
  bf16 keys[kGroups][kTileElements<kDim>], values[kGroups][kTileElements<kDim>];
  bf16 queries[kStages][kTileElements<kDim>], gradients[kStages][kTileElements<kDim>];
  QueryNumbers norms[kStages], deltas[kStages];
  StageQueries tiles[kStages];
  Ring<kStages> ring;
  Ring<kGroups> keys_ring;  // each barrier is used once per work item
  WorkQueue<Work, kQueuedItems> work_items;
};

template <int kDim>
__device__ __forceinline__ void load_keys(Shared<kDim>& shared, const Backward& p, const Work& work,
                                          const TileLoader<kDim>& loader, int round) {
  const int first_position = work.sequence.first_position + work.first;
  const KvPlace place = keys_of(p, work.sequence, work.kv_head, first_position + work.present);
  for (int g = 0; g < kGroups; ++g) {
    const bf16* from[4];
    find_positions(from, place, first_position + g * kTileRows);
    shared.keys_ring.empty[g].wait(round ^ 1);
    loader.positions(shared.keys[g], from, 0, work.present - g * kTileRows);
    loader.positions(shared.values[g], from, place.value_offset, work.present - g * kTileRows);
    shared.keys_ring.full[g].arrive_after_copies();
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Backward& p, const Work& work,
                                     QueryTiles<kTileRows> tiles, const TileLoader<kDim>& loader,
                                     RingPlace<kStages>& at, int round, int thread) {
  const auto stats_of = [&](const QueryTiles<kTileRows>& tiles) {
    const int own = tiles.first() + thread;
    return thread < kTileRows && own < tiles.rows ? QueryStats(p, int64_t{tiles.row_begin} + own, tiles.head)
                                                  : QueryStats();
  };
  QueryStats stats = stats_of(tiles);
  for (bool first_tile = true; !tiles.done(); at.advance(), first_tile = false) {
    const int column = tiles.head * kDim, rows = tiles.rows - tiles.first();
    const int64_t row = int64_t{tiles.row_begin} + tiles.first();
    shared.ring.empty[at.stage].wait(at.round ^ 1);
    if (thread < kTileRows)
      shared.norms[at.stage][thread] = stats.log2_norm(), shared.deltas[at.stage][thread] = stats.delta;
    if (thread == 0)
      shared.tiles[at.stage] = {tiles.position(), tiles.end_key(), tiles.last(),
                                p.score_gradients ? p.score_gradients_of(tiles.head, tiles.score_tile()) : nullptr};
    shared.ring.full[at.stage].arrive();
    loader.rows(shared.queries[at.stage], p.q, row, column, rows);
    loader.rows(shared.gradients[at.stage], p.d_o, row, column, rows);
    shared.ring.full[at.stage].arrive_after_copies();
    // Loaded after the first queries, because the last item's key buffers become free later than its query buffers.
    if (first_tile) load_keys<kDim>(shared, p, work, loader, round);
    tiles.advance(p);
    if (!tiles.done()) stats = stats_of(tiles);
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Backward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  KeyGroups groups;
  CountedIndices indices(p.counters, thread);
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  Work work;
  for (int round = 0;; round ^= 1) {
    // Tiles are listed with the most keys first. Read from the end, the list starts with keys that most queries see.
    const int index = indices.next();
    const QueryTile found = groups.find(p.sequences, index / p.kv_heads);
    if (found.sequence < 0) break;
    const Tile tile(p, found);
    work = Work(tile, index % p.kv_heads, KeyGroups::tiles_from(p.sequences, found));
    shared.work_items.hand_over(work_at, work, thread);
    load<kDim>(shared, p, work, QueryTiles<kTileRows>(p, tile, work.first, work.present, work.kv_head), loader, at,
               round, thread);
  }
  indices.finish();
  work.kv_head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// Turns S^T into P^T in place.
[[maybe_unused]] __device__ __forceinline__ void make_probabilities(float (&s)[8][4], const LaneNumbers& norms,
                                                                    float c) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = exp2_fast(__fmaf_rn(s[n][e], c, -norms.of(n, e)));
}
// Turns dP^T into dS^T in place.
[[maybe_unused]] __device__ __forceinline__ void make_score_gradients(float (&d)[8][4],
                                                                      const float (&probability)[8][4],
                                                                      const LaneNumbers& deltas) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) d[n][e] = probability[n][e] * (d[n][e] - deltas.of(n, e));
}
// Masks of 16 keys from first_key on and 64 queries. A lane's queries are i = 8 n + e, e 0 or 1, counted from
// first_query + 2 (lane % 4) on; those below `begin` do not see its key, nor do those from `end` on.
[[maybe_unused]] __device__ __forceinline__ void mask_transposed(float (&s)[8][4], int first_key, int first_query,
                                                                 int end_key, int window, int lane) {
  int begin[2], end[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int key = first_key + lane / 4 + 8 * h, i = key - first_query - 2 * (lane & 3);
    begin[h] = key < end_key ? i : INT_MAX;
    end[h] = window ? i + window : INT_MAX;
  }
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * n + e % 2;
      if (i < begin[e / 2] || i >= end[e / 2]) s[n][e] = -INFINITY;
    }
}

// Stores dS^T of 64 keys and 64 queries, a warp its 16 keys: rows of 128 bytes, swizzled as a tile. Query
// 32 i + 8 j + 2 t + e of a row lies at 32 i + 8 t + 2 j + e, so that each lane of a quad, which has all with its t,
// stores 16 bytes at a time.
[[maybe_unused]] __device__ __forceinline__ void store_score_gradients(bf16* tile, const uint32_t (&ds)[4][4], int warp,
                                                                       int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + 8 * h + lane / 4, chunk = 4 * i + (lane & 3);
      __stcs(reinterpret_cast<uint4*>(tile + swizzled_offset(row, chunk)),
             make_uint4(ds[2 * i][h], ds[2 * i][2 + h], ds[2 * i + 1][h], ds[2 * i + 1][2 + h]));
    }
}

// Adds what a tile of queries, none of which sees keys from end_key on, contributes to dk and dv of 64 keys.
template <int kDim>
__device__ __forceinline__ void add_queries(float (&dk)[kDim / 8][4], float (&dv)[kDim / 8][4],
                                            const Shared<kDim>& shared, const Backward& p, int group, int stage,
                                            int first_key, const StageQueries& tile, int lane) {
  const bf16* const queries = shared.queries[stage];
  const bf16* const gradients = shared.gradients[stage];
  const int warp = threadIdx.x / 32 & 3;
  float s[8][4], d[8][4];
  uint32_t a[4][4], ds[4][4];
  wgmma_fence();
  start_rows_by_rows<kDim>(s, shared.keys[group], queries);
  wgmma_commit();
  start_rows_by_rows<kDim>(d, shared.values[group], gradients);
  wgmma_commit();
  wgmma_wait<1>();
  pin(s);
  const bool all = first_key + kKeyBlock - 1 < min(tile.position + 1, tile.end_key) &&
                   (p.window == 0 || first_key > tile.position + kTileRows - 1 - p.window);
  if (!all) mask_transposed(s, first_key + 16 * warp, tile.position, tile.end_key, p.window, lane);
  make_probabilities(s, LaneNumbers(shared.norms[stage], lane), p.c);
  pack_weights(a, s);
  wgmma_fence();
  start_weighted_rows<kDim>(dv, a, gradients);
  wgmma_commit();
  wgmma_wait<1>();
  pin(d);
  make_score_gradients(d, s, LaneNumbers(shared.deltas[stage], lane));
  pack_weights(ds, d);
  if (tile.score_gradients) store_score_gradients(tile.score_gradients + first_key * kKeyBlock, ds, warp, lane);
  wgmma_fence();
  start_weighted_rows<kDim>(dk, ds, queries);
  wgmma_commit();
  wgmma_wait<0>();
  pin(dv), pin(dk);
}

template <int kDim>
__device__ __forceinline__ void compute_keys(Shared<kDim>& shared, const Backward& p, const Work& work,
                                             RingPlace<kStages>& at, int group, int lane) {
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const int first_key = work.first + group * kTileRows;
  for (bool last = false; !last; at.advance()) {
    shared.ring.full[at.stage].wait(at.round);
    const StageQueries tile = shared.tiles[at.stage];
    last = tile.last;
    // Otherwise no query of the tile sees a key of this warpgroup, or the tile has no queries.
    if (first_key <= tile.position && first_key < tile.end_key && group * kTileRows < work.present &&
        (p.window == 0 || first_key + kKeyBlock - 1 > tile.position - p.window)) {
      fence_for_wgmma();
      add_queries<kDim>(dk, dv, shared, p, group, at.stage, first_key, tile, lane);
    }
    release_stage(shared.ring.empty[at.stage], lane);
  }
  synchronize_warpgroup(2 + group);  // no warp reads the keys and values any more
  const int warp = threadIdx.x / 32 & 3, own = group * kTileRows + 16 * warp, column = work.kv_head * kDim;
  const int64_t row = int64_t{work.sequence.row_begin} + work.first + own;
  store_gradient_staged<kDim>(p.dk, dk, shared.keys[group] + 16 * warp * kDim, row, column, work.present - own, p.scale,
                              lane);
  store_gradient_staged<kDim>(p.dv, dv, shared.values[group] + 16 * warp * kDim, row, column, work.present - own, 1.0f,
                              lane);
  release_stage(shared.keys_ring.empty[group], lane);
}

template <int kDim>
__device__ __forceinline__ void compute_keys(Shared<kDim>& shared, const Backward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  for (int round = 0;; round ^= 1) {
    const Work work = shared.work_items.take(work_at, lane);
    if (work.kv_head < 0) return;
    shared.keys_ring.full[group].wait(round);
    compute_keys<kDim>(shared, p, work, at, group, lane);
  }
}

// dk and dv for a work item: summed over the sequences that see them, the heads of the group, then
// tiles of queries, in order.
template <int kDim>
__global__ void __launch_bounds__(kPersistentThreads, 1) key_kernel(const __grid_constant__ Backward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(2 * kWarpgroup, kGroups);
      shared.keys_ring.init(kWarpgroup, 1);
      shared.work_items.init(kGroups);
    }
    split_warpgroups<kLoading<kDim>, kComputing<kDim>>(
        [&](int thread) { load<kDim>(shared, p, thread); },
        [&](int group, int lane) { compute_keys<kDim>(shared, p, group, lane); });
  } else {
    __trap();
  }
}

}  // namespace

void launch_key_gradients_wgmma(const Backward& p, Stream& stream) {
  const int64_t items = max_groups(p.sequences, p.sequences.followers ? 1 : kGroups) * p.kv_heads;
  p.head_dim == 64 ? launch_persistent<key_kernel<64>, Shared<64>>(p, items, stream)
                   : launch_persistent<key_kernel<128>, Shared<128>>(p, items, stream);
}

}  // namespace lockstep::kernels::cuda
