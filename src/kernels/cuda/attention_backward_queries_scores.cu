// dq on Hopper from the dS that the keys' kernel has stored (Backward::score_gradients): the same sums in the same
// order as attention_backward.cu, by one matmul where attention_backward_queries_wgmma.cu has three. One warpgroup
// loads. A work item is four tiles of queries of one head, which share keys; the other warpgroups compute two of them
// each.
#include "kernels/cuda/attention_backward_wgmma.cuh"
#include "kernels/cuda/copy_engine.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kTiles = 4;  // of a work item
constexpr int kGroups = kComputingGroups;
constexpr int kTilesEach = 2;  // warpgroup g has tiles g and g + kGroups
static_assert(kTiles == kGroups * kTilesEach);
constexpr int kLoading = 88, kComputing = 208;  // registers per thread
constexpr int kStages = 4;
constexpr int kQueuedItems = 2;  // work items that may be queued ahead of the computing warpgroups

using QueryGroups = TileGroups<kTiles, false>;

// One work item of a CTA. Keys are counted in tiles of 64: first `ahead` of those ahead of the sequence's rows, then
// its own.
struct Work {
  DeviceSequence sequence;
  int first, head;  // row in the sequence; head is -1 after the last work item
  int ahead;
  int first_keys, last_keys;  // tiles that any row sees
  int score_tile;             // of the first tile of queries and tile 0 of keys

  Work() = default;
  __device__ Work(const Backward& p, const QueryTile& tile, int query_head)
      : sequence(p.sequences.sequences[tile.sequence]),
        first(tile.first),
        head(query_head),
        ahead(tiles_ahead(sequence.first_position)),
        first_keys(first_of(p, 0)),
        last_keys(last_of(min(kTiles, (sequence.rows - first + kTileRows - 1) / kTileRows) - 1)),
        score_tile(static_cast<int>(p.sequences.score_tiles[tile.sequence]) + first / kTileRows * ahead +
                   first / kTileRows * (first / kTileRows + 1) / 2) {}

  // Of the n-th tile of queries.
  __device__ int present(int n) const { return sequence.rows - first - n * kTileRows; }
  __device__ int last_of(int n) const { return ahead + first / kTileRows + n; }
  __device__ int first_of(const Backward& p, int n) const {
    if (p.window == 0) return 0;
    const int key = max(0, sequence.first_position + first + n * kTileRows - p.window + 1);
    return key < sequence.first_position ? key / kKeyBlock : ahead + (key - sequence.first_position) / kKeyBlock;
  }
  __device__ bool sees(const Backward& p, int n, int keys) const {
    return present(n) > 0 && keys <= last_of(n) && keys >= first_of(p, n);
  }
  __device__ int score_tile_of(int n, int keys) const {
    return score_tile + n * (last_of(0) + 1) + n * (n - 1) / 2 + keys;
  }
  // Of a tile of keys, and where those of its part of the sequence end.
  __device__ int position(int keys) const {
    return keys < ahead ? keys * kKeyBlock : sequence.first_position + (keys - ahead) * kKeyBlock;
  }
  __device__ int end(int keys) const {
    return sequence.first_position + (keys < ahead ? 0 : min(first + kTiles * kTileRows, sequence.rows));
  }
};

template <int kDim>
struct Shared {
  bf16 keys[kStages][kTileRows * kDim];
  bf16 scores[kStages][kTiles][kScoreElements];
  bf16 staged[kGroups][4][16 * kDim];  // dq of a warp as it is stored
  Ring<kStages> ring;
  WorkQueue<Work, kQueuedItems> work_items;
};

constexpr uint32_t kScoreBytes = kScoreElements * sizeof(bf16);

// The tiles of dS of a stage, as they are stored, by one thread.
template <int kDim>
__device__ __forceinline__ void copy_scores(Shared<kDim>& shared, const Backward& p, const Work& work, int stage,
                                            int keys) {
  const uint32_t full = shared_address(&shared.ring.full[stage]);
  uint32_t bytes = 0;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
    if (work.sees(p, n, keys)) {
      copy_bytes(shared_address(shared.scores[stage][n]), p.score_gradients_of(work.head, work.score_tile_of(n, keys)),
                 kScoreBytes, full);
      bytes += kScoreBytes;
    }
  barrier_expect(full, bytes);
}

template <int kDim>
__device__ __forceinline__ void load_work(Shared<kDim>& shared, const Backward& p, const Work& work,
                                          const TileLoader<kDim>& loader, RingPlace<kStages>& at, int thread) {
  const KvPlace place = keys_of(p, work.sequence, work.head / (p.heads / p.kv_heads), work.end(work.ahead));
  const bf16* from[4];
  find_positions(from, place, work.position(work.first_keys));
  for (int keys = work.first_keys; keys <= work.last_keys; ++keys, at.advance()) {
    shared.ring.empty[at.stage].wait(at.round ^ 1);
    if (thread == 0) copy_scores<kDim>(shared, p, work, at.stage, keys);
    loader.positions(shared.keys[at.stage], from, 0, work.end(keys) - work.position(keys));
    shared.ring.full[at.stage].arrive_after_copies();
    find_positions(from, place, work.position(keys + 1));
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Backward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  QueryGroups groups;
  CountedIndices indices(p.counters, thread);
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  Work work;
  while (true) {
    const int index = indices.next();
    const QueryTile tile = groups.find(p.sequences, index / p.heads);
    if (tile.sequence < 0) break;
    work = Work(p, tile, index % p.heads);
    shared.work_items.hand_over(work_at, work, thread);
    load_work<kDim>(shared, p, work, loader, at, thread);
  }
  indices.finish();
  work.head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// dq of 64 queries += dS of 64 keys times these. Row r of warp w is not query 16 w + r: query_of.
template <int kDim>
__device__ __forceinline__ void start_scores_by_keys(float (&dq)[kDim / 8][4], const bf16* scores, const bf16* keys) {
  const uint64_t a = tile_descriptor(scores), b = tile_descriptor(keys);
#pragma unroll
  for (int k = 0; k < kKeyBlock / 16; ++k) wgmma_columns(dq, a + row_step(k), b + row_step(k));
}
// The query of a tile that is row r of a warp (store_score_gradients).
__device__ __forceinline__ int query_of(int warp, int r) {
  const int chunk = 2 * warp + r / 8;
  return chunk / 4 * 32 + r % 8 / 2 * 8 + chunk % 4 * 2 + r % 2;
}

template <int kDim>
__device__ __forceinline__ void compute_work(Shared<kDim>& shared, const Backward& p, const Work& work,
                                             RingPlace<kStages>& at, int group, int lane) {
  float dq[kTilesEach][kDim / 8][4] = {};
#pragma unroll
  for (int n = 0; n < kTilesEach; ++n) pin(dq[n]);  // zero the registers here, not while matmuls are in flight
  int before = -1;
  for (int keys = work.first_keys; keys <= work.last_keys; ++keys) {
    shared.ring.full[at.stage].wait(at.round);
    fence_for_wgmma();
    wgmma_fence();
    const auto start = [&](int n) {
      start_scores_by_keys<kDim>(dq[n], shared.scores[at.stage][group + n * kGroups], shared.keys[at.stage]);
    };
    // A group of matmuls in each branch: committed behind them it would be another one.
    const bool first = work.sees(p, group, keys), second = work.sees(p, group + kGroups, keys);
    if (first && second) {
      start(0), start(1);
      wgmma_commit();
      wgmma_wait<1>();
    } else {
      if (first) start(0);
      if (second) start(1);
      wgmma_commit();
      wgmma_wait<0>();
    }
    if (before >= 0) release_stage(shared.ring.empty[before], lane);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
  release_stage(shared.ring.empty[before], lane);
  const int warp = threadIdx.x / 32 & 3;
#pragma unroll
  for (int n = 0; n < kTilesEach; ++n) {
    pin(dq[n]);
    const int tile = group + n * kGroups;
    const int64_t row = int64_t{work.sequence.row_begin} + work.first + tile * kTileRows;
    store_staged<kDim>(
        shared.staged[group][warp], p.dq, row, work.head * kDim, work.present(tile), lane,
        [&](int i, int h) { return pack_bf16(dq[n][i][2 * h] * p.scale, dq[n][i][2 * h + 1] * p.scale); },
        [&](int r) { return query_of(warp, r); });
  }
}

template <int kDim>
__device__ __forceinline__ void compute(Shared<kDim>& shared, const Backward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  while (true) {
    const Work work = shared.work_items.take(work_at, lane);
    if (work.head < 0) return;
    compute_work<kDim>(shared, p, work, at, group, lane);
  }
}

// dq for a work item: summed over tiles of keys in order.
template <int kDim>
__global__ void __launch_bounds__(kPersistentThreads, 1) query_kernel(const __grid_constant__ Backward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(kWarpgroup + 1, kGroups);
      shared.work_items.init(kGroups);
      barrier_init_fence();
    }
    split_warpgroups<kLoading, kComputing>([&](int thread) { load<kDim>(shared, p, thread); },
                                           [&](int group, int lane) { compute<kDim>(shared, p, group, lane); });
  } else {
    __trap();
  }
}

}  // namespace

bool keeps_score_gradients(const Backward& p, const Tensor& memory) {
  const int64_t wanted = p.heads * p.sequences.num_score_tiles * kScoreElements;
  return p.sequences.score_tiles && p.sequences.num_score_tiles <= INT_MAX && memory.elements() >= wanted &&
         p.dq.by_16 && reinterpret_cast<uintptr_t>(memory.data) % 16 == 0;
}

void launch_query_gradients_from_scores(const Backward& p, Stream& stream) {
  const int64_t items = max_groups(p.sequences, kTiles) * p.heads;
  p.head_dim == 64 ? launch_persistent<query_kernel<64>, Shared<64>>(p, items, stream)
                   : launch_persistent<query_kernel<128>, Shared<128>>(p, items, stream);
}

}  // namespace lockstep::kernels::cuda
