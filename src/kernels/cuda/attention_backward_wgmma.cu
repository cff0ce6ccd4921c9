// attention_backward on Hopper: the same sums in the same order as attention_backward.cu, computed with wgmma. One
// warpgroup loads. The others have 64 rows (keys or queries) each and are not synchronized with each other, so that the
// exponentials of one overlap the matmuls of another. P and dS stay in registers: the kernel for dk and dv computes
// S^T = K Q^T, the kernel for dq computes S = Q K^T.
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_work.cuh"
#include "kernels/cuda/library.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kKeyGroups = 2, kQueryGroups = 3;  // warpgroups that compute
constexpr int kKeyThreads = (1 + kKeyGroups) * kWarpgroup, kQueryThreads = (1 + kQueryGroups) * kWarpgroup;
// Registers per thread of the loading warpgroup and of the computing ones; the sum must fit the CTA's allocation.
constexpr int kQueuedItems = 2;  // work items that may be queued ahead of the computing warpgroups
constexpr int kKeyLoading = 40, kKeyComputing = 232;
constexpr int kQueryLoading = 32, kQueryComputing = 160;

template <int kDim>
constexpr int kTileElements = kTileRows* kDim;

// One work item of a CTA of the dk/dv kernel: tiles of keys.
struct KeyWork {
  DeviceSequence sequence;
  int first, kv_head, present;  // kv_head is -1 after the last work item

  KeyWork() = default;
  __device__ KeyWork(const Tile& tile, int head)
      : sequence(tile.sequence),
        first(tile.first),
        kv_head(head),
        present(min(sequence.rows - first, kKeyGroups * kTileRows)) {}
};
// A stage's tile of queries, as the computing warpgroups see it: QueryTiles.
struct StageQueries {
  int position, end_key, last;
};

template <int kDim>
struct KeyShared {
  bf16 keys[kKeyGroups][kTileElements<kDim>], values[kKeyGroups][kTileElements<kDim>];
  bf16 queries[kStages][kTileElements<kDim>], gradients[kStages][kTileElements<kDim>];
  float4 norm_delta[kStages][kTileRows / 2];  // for two rows each: norm, norm, delta, delta
  StageQueries tiles[kStages];
  Ring<kStages> ring;
  Ring<kKeyGroups> keys_ring;  // each barrier is used once per work item
  WorkQueue<KeyWork, kQueuedItems> work_items;
};

template <int kDim>
__device__ __forceinline__ void load_keys(KeyShared<kDim>& shared, const Backward& p, const KeyWork& work,
                                          const TileLoader<kDim>& loader, int round) {
  const int first_position = work.sequence.first_position + work.first;
  const KvPlace place = keys_of(p, work.sequence, work.kv_head, first_position + work.present);
  for (int g = 0; g < kKeyGroups; ++g) {
    const bf16* from[4];
    find_positions(from, place, first_position + g * kTileRows);
    shared.keys_ring.empty[g].wait(round ^ 1);
    loader.positions(shared.keys[g], from, 0, work.present - g * kTileRows);
    loader.positions(shared.values[g], from, place.value_offset, work.present - g * kTileRows);
    shared.keys_ring.full[g].arrive_after_copies();
  }
}

template <int kDim>
__device__ __forceinline__ void load_for_keys(KeyShared<kDim>& shared, const Backward& p, const KeyWork& work,
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
    if (thread < kTileRows) {
      float* const to = reinterpret_cast<float*>(&shared.norm_delta[at.stage][thread / 2]) + (thread & 1);
      to[0] = stats.log2_norm(), to[2] = stats.delta;
    }
    if (thread == 0) shared.tiles[at.stage] = {tiles.position(), tiles.end_key(), tiles.last()};
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
__device__ __forceinline__ void load_for_keys(KeyShared<kDim>& shared, const Backward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  TileGroups<kKeyGroups, true> groups;
  DealtIndices indices;
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  KeyWork work;
  for (int item = 0;; ++item) {
    // Tiles are listed with the most keys first. Read from the end, the list starts with keys that most queries see.
    const int index = indices.next();
    const QueryTile found = groups.find(p.sequences, index / p.kv_heads);
    if (found.sequence < 0) break;
    const Tile tile(p, found);
    work = KeyWork(tile, index % p.kv_heads);
    shared.work_items.hand_over(work_at, work, thread);
    load_for_keys<kDim>(shared, p, work, QueryTiles<kTileRows>(p, tile, work.first, work.present, work.kv_head), loader,
                        at, item & 1, thread);
  }
  work.kv_head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// Turns S^T into P^T in place.
[[maybe_unused]] __device__ __forceinline__ void make_probabilities(float (&s)[8][4], const float4* norm_delta, float c,
                                                                    int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float4 two = norm_delta[4 * n + (lane & 3)];
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = exp2_fast(__fmaf_rn(s[n][e], c, -(e & 1 ? two.y : two.x)));
  }
}
// Turns dP^T into dS^T in place.
[[maybe_unused]] __device__ __forceinline__ void make_score_gradients(float (&d)[8][4],
                                                                      const float (&probability)[8][4],
                                                                      const float4* norm_delta, int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float4 two = norm_delta[4 * n + (lane & 3)];
#pragma unroll
    for (int e = 0; e < 4; ++e) d[n][e] = probability[n][e] * (d[n][e] - (e & 1 ? two.w : two.z));
  }
}
// Masks of 16 keys from first_key on and 64 queries.
[[maybe_unused]] __device__ __forceinline__ void mask_transposed(float (&s)[8][4], int first_key, int first_query,
                                                                 int end_key, int window, int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = first_query + 8 * n + 2 * (lane & 3) + (e & 1), key = first_key + lane / 4 + 8 * (e >> 1);
      if (key > query || key >= end_key || (window != 0 && key <= query - window)) s[n][e] = -INFINITY;
    }
}

// Adds what a tile of queries, none of which sees keys from end_key on, contributes to dk and dv of 64 keys.
template <int kDim>
__device__ __forceinline__ void add_queries(float (&dk)[kDim / 8][4], float (&dv)[kDim / 8][4],
                                            const KeyShared<kDim>& shared, const Backward& p, int group, int stage,
                                            int first_key, int first_query, int end_key, int lane) {
  const bf16* const queries = shared.queries[stage];
  const bf16* const gradients = shared.gradients[stage];
  float s[8][4], d[8][4];
  uint32_t a[4][4], ds[4][4];
  wgmma_fence();
  start_rows_by_rows<kDim>(s, shared.keys[group], queries);
  wgmma_commit();
  start_rows_by_rows<kDim>(d, shared.values[group], gradients);
  wgmma_commit();
  wgmma_wait<1>();
  pin(s);
  const bool all = first_key + kKeyBlock - 1 < min(first_query + 1, end_key) &&
                   (p.window == 0 || first_key > first_query + kTileRows - 1 - p.window);
  if (!all) mask_transposed(s, first_key + 16 * (threadIdx.x / 32 & 3), first_query, end_key, p.window, lane);
  make_probabilities(s, shared.norm_delta[stage], p.c, lane);
  pack_weights(a, s);
  wgmma_fence();
  start_weighted_rows<kDim>(dv, a, gradients);
  wgmma_commit();
  wgmma_wait<1>();
  pin(d);
  make_score_gradients(d, s, shared.norm_delta[stage], lane);
  pack_weights(ds, d);
  wgmma_fence();
  start_weighted_rows<kDim>(dk, ds, queries);
  wgmma_commit();
  wgmma_wait<0>();
  pin(dv), pin(dk);
}

template <int kDim>
__device__ __forceinline__ void compute_keys(KeyShared<kDim>& shared, const Backward& p, const KeyWork& work,
                                             RingPlace<kStages>& at, int group, int lane) {
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const int first_key = work.first + group * kTileRows;
  for (bool last = false; !last; at.advance()) {
    shared.ring.full[at.stage].wait(at.round);
    const auto [first_query, end_key, is_last] = shared.tiles[at.stage];
    last = is_last;
    // Otherwise no query of the tile sees a key of this warpgroup, or the tile has no queries.
    if (first_key <= first_query && first_key < end_key && group * kTileRows < work.present &&
        (p.window == 0 || first_key + kKeyBlock - 1 > first_query - p.window)) {
      fence_for_wgmma();
      add_queries<kDim>(dk, dv, shared, p, group, at.stage, first_key, first_query, end_key, lane);
    }
    release_stage(shared.ring.empty[at.stage], lane);
  }
  release_stage(shared.keys_ring.empty[group], lane);
  const int own = group * kTileRows + 16 * (threadIdx.x / 32 & 3), column = work.kv_head * kDim;
  const int64_t row = int64_t{work.sequence.row_begin} + work.first + own;
  store_gradient<kDim>(p.dk, dk, row, column, work.present - own, kDim, p.scale, lane);
  store_gradient<kDim>(p.dv, dv, row, column, work.present - own, kDim, 1.0f, lane);
}

template <int kDim>
__device__ __forceinline__ void compute_keys(KeyShared<kDim>& shared, const Backward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  for (int round = 0;; round ^= 1) {
    const KeyWork work = shared.work_items.take(work_at, lane);
    if (work.kv_head < 0) return;
    shared.keys_ring.full[group].wait(round);
    compute_keys<kDim>(shared, p, work, at, group, lane);
  }
}

// dk and dv for two tiles of keys and a kv head: summed over the sequences that see them, the heads of the group, then
// tiles of queries, in order.
template <int kDim>
__global__ void __launch_bounds__(kKeyThreads, 1) key_kernel(const __grid_constant__ Backward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<KeyShared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(2 * kWarpgroup, kKeyGroups);
      shared.keys_ring.init(kWarpgroup, 1);
      shared.work_items.init(kKeyGroups);
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == 0) {
      release_registers<kKeyLoading>();
      load_for_keys<kDim>(shared, p, threadIdx.x);
    } else {
      claim_registers<kKeyComputing>();
      compute_keys<kDim>(shared, p, warpgroup - 1, threadIdx.x & 31);
    }
  } else {
    __trap();
  }
}

// One work item of a CTA of the dq kernel: queries of one head, and the blocks of keys that they see.
struct QueryWork {
  DeviceSequence sequence;
  int64_t row;
  int first, head, present;     // head is -1 after the last work item
  int position;                 // of the first query
  int first_block, last_block;  // of keys

  QueryWork() = default;
  __device__ QueryWork(const Backward& p, const Tile& tile, int query_head)
      : sequence(tile.sequence), row(int64_t{sequence.row_begin} + tile.first), first(tile.first), head(query_head) {
    present = min(sequence.rows - first, kQueryGroups * kTileRows);
    position = sequence.first_position + first;
    first_block = (p.window ? max(0, position - p.window + 1) : 0) / kKeyBlock;
    last_block = (position + present - 1) / kKeyBlock;
  }
};

template <int kDim>
struct QueryShared {
  bf16 queries[kQueryGroups][kTileElements<kDim>], gradients[kQueryGroups][kTileElements<kDim>];
  bf16 keys[kStages][kTileElements<kDim>], values[kStages][kTileElements<kDim>];
  Ring<kStages> ring;
  Ring<kQueryGroups> queries_ring;  // each barrier is used once per work item
  WorkQueue<QueryWork, kQueuedItems> work_items;
};

template <int kDim>
__device__ __forceinline__ void load_for_queries(QueryShared<kDim>& shared, const Backward& p, const QueryWork& work,
                                                 const TileLoader<kDim>& loader, RingPlace<kStages>& at, int round) {
  const KvPlace place = keys_of(p, work.sequence, work.head / (p.heads / p.kv_heads), work.position + work.present);
  const bf16* from[4];
  find_positions(from, place, work.first_block * kKeyBlock);
  for (int block = work.first_block; block <= work.last_block; ++block, at.advance()) {
    const int present = place.end - block * kKeyBlock;
    shared.ring.empty[at.stage].wait(at.round ^ 1);
    loader.positions(shared.keys[at.stage], from, 0, present);
    loader.positions(shared.values[at.stage], from, place.value_offset, present);
    shared.ring.full[at.stage].arrive_after_copies();
    // Loaded after the first keys, because the last item's query buffers become free later than its key buffers.
    for (int g = 0; g < kQueryGroups && block == work.first_block; ++g) {
      const int first = g * kTileRows, column = work.head * kDim;
      shared.queries_ring.empty[g].wait(round ^ 1);
      loader.rows(shared.queries[g], p.q, work.row + first, column, work.present - first);
      loader.rows(shared.gradients[g], p.d_o, work.row + first, column, work.present - first);
      shared.queries_ring.full[g].arrive_after_copies();
    }
    find_positions(from, place, (block + 1) * kKeyBlock);
  }
}

template <int kDim>
__device__ __forceinline__ void load_for_queries(QueryShared<kDim>& shared, const Backward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  TileGroups<kQueryGroups, false> groups;
  DealtIndices indices;
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  QueryWork work;
  for (int item = 0;; ++item) {
    const int index = indices.next();
    const QueryTile tile = groups.find(p.sequences, index / p.heads);
    if (tile.sequence < 0) break;
    work = QueryWork(p, Tile(p, tile), index % p.heads);
    shared.work_items.hand_over(work_at, work, thread);
    load_for_queries<kDim>(shared, p, work, loader, at, item & 1);
  }
  work.head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// Adds what a block of keys contributes to dq of 64 queries.
template <int kDim>
__device__ __forceinline__ void add_keys(float (&dq)[kDim / 8][4], const QueryShared<kDim>& shared, int group,
                                         int stage, const QueryRows& rows, int first_key, bool masked, float c,
                                         int lane) {
  float s[8][4], d[8][4];
  uint32_t ds[4][4];
  wgmma_fence();
  start_rows_by_rows<kDim>(s, shared.queries[group], shared.keys[stage]);
  wgmma_commit();
  start_rows_by_rows<kDim>(d, shared.gradients[group], shared.values[stage]);
  wgmma_commit();
  wgmma_wait<1>();
  pin(s);
  if (masked) mask_block(s, first_key, rows.low, rows.high, lane);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = exp2_fast(__fmaf_rn(s[n][e], c, -rows.norm[e >> 1]));
  wgmma_wait<0>();
  pin(d);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) d[n][e] = s[n][e] * (d[n][e] - rows.delta[e >> 1]);
  pack_weights(ds, d);
  wgmma_fence();
  start_weighted_rows<kDim>(dq, ds, shared.keys[stage]);
  wgmma_commit();
  wgmma_wait<0>();
  pin(dq);
}

template <int kDim>
__device__ __forceinline__ void compute_queries(QueryShared<kDim>& shared, const Backward& p, const QueryWork& work,
                                                RingPlace<kStages>& at, int group, int lane) {
  const int warp = threadIdx.x / 32 & 3, own = group * kTileRows, first = work.position + own;
  const QueryRows rows(p, work.row + own, work.head, work.present - own, first, warp, lane);
  float dq[kDim / 8][4] = {};
  for (int block = work.first_block; block <= work.last_block; ++block, at.advance()) {
    const int first_key = block * kKeyBlock, last_key = first_key + kKeyBlock - 1;
    shared.ring.full[at.stage].wait(at.round);
    // Otherwise no query of this warpgroup sees a key of the block, or the warpgroup has no queries.
    if (first_key < first + kTileRows && own < work.present && (p.window == 0 || last_key > first - p.window)) {
      const bool masked = last_key > first || (p.window != 0 && first_key <= first + kTileRows - 1 - p.window);
      fence_for_wgmma();
      add_keys<kDim>(dq, shared, group, at.stage, rows, first_key, masked, p.c, lane);
    }
    release_stage(shared.ring.empty[at.stage], lane);
  }
  release_stage(shared.queries_ring.empty[group], lane);
  store_gradient<kDim>(p.dq, dq, work.row + own + 16 * warp, work.head * kDim, work.present - own - 16 * warp, kDim,
                       p.scale, lane);
}

template <int kDim>
__device__ __forceinline__ void compute_queries(QueryShared<kDim>& shared, const Backward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  for (int round = 0;; round ^= 1) {
    const QueryWork work = shared.work_items.take(work_at, lane);
    if (work.head < 0) return;
    shared.queries_ring.full[group].wait(round);
    compute_queries<kDim>(shared, p, work, at, group, lane);
  }
}

// dq for three tiles of one head: summed over blocks of keys in order.
template <int kDim>
__global__ void __launch_bounds__(kQueryThreads, 1) query_kernel(const __grid_constant__ Backward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<QueryShared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(kWarpgroup, kQueryGroups);
      shared.queries_ring.init(kWarpgroup, 1);
      shared.work_items.init(kQueryGroups);
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == 0) {
      release_registers<kQueryLoading>();
      load_for_queries<kDim>(shared, p, threadIdx.x);
    } else {
      claim_registers<kQueryComputing>();
      compute_queries<kDim>(shared, p, warpgroup - 1, threadIdx.x & 31);
    }
  } else {
    __trap();
  }
}

template <int kDim>
void launch(const Backward& p, int multiprocessors, cudaStream_t stream) {
  constexpr const char* kOp = "attention_backward";
  constexpr int kQueryBytes = sizeof(QueryShared<kDim>) + kTileAlignment;
  constexpr int kKeyBytes = sizeof(KeyShared<kDim>) + kTileAlignment;
  const auto ctas = [&](int64_t work_items) {
    return static_cast<unsigned>(std::min<int64_t>(work_items, multiprocessors));
  };
  const unsigned query_ctas = ctas(max_groups(p.sequences, kQueryGroups) * p.heads);
  const unsigned key_ctas = ctas(max_groups(p.sequences, kKeyGroups) * p.kv_heads);
  allow_shared(query_kernel<kDim>, kQueryBytes, kOp);
  query_kernel<kDim><<<query_ctas, kQueryThreads, kQueryBytes, stream>>>(p);
  check_launch(kOp);
  allow_shared(key_kernel<kDim>, kKeyBytes, kOp);
  key_kernel<kDim><<<key_ctas, kKeyThreads, kKeyBytes, stream>>>(p);
  check_launch(kOp);
}

}  // namespace

bool takes_wgmma(const Backward& p) {
  return (p.head_dim == 64 || p.head_dim == 128) && p.q.by_16 && p.d_o.by_16 && has_sm90();
}

void launch_backward_wgmma(const Backward& p, Stream& stream) {
  const int multiprocessors = library_of(stream).multiprocessors;
  const cudaStream_t on = stream_of(stream);
  p.head_dim == 64 ? launch<64>(p, multiprocessors, on) : launch<128>(p, multiprocessors, on);
}

}  // namespace lockstep::kernels::cuda
