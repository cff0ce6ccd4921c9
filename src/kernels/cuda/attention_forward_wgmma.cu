// attention_forward of tiles on Hopper: what attention_common.cuh defines, computed by wgmma, whose accumulation order
// and fragments are those of mma.sync. One warpgroup loads. Three have 64 rows each and are not synchronized with each
// other, so that the softmax of one overlaps the matmuls of the others: three tiles of a head or, where a sequence has
// only one tile, three heads of a group.
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/library.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kGroups = 3;  // warpgroups that compute
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kLoading = 32, kComputing = 160;  // registers per thread
constexpr int kSlots = 5;                       // ring buffer of tiles: keys and values alternate
constexpr int kQueuedItems = 2;                 // work items that may be queued ahead of the computing warpgroups

// 64 rows of one head, or as many of them as are present.
struct Unit {
  int head, first, present;
};

// One work item of a CTA.
struct Work {
  DeviceSequence sequence;
  int first, head, heads, end, first_block, last_block;  // heads: 0 if the units are tiles of one head
                                                         // head: -1 after the last work item

  Work() = default;
  __device__ Work(const Forward& p, const QueryTile& tile, int query_head)
      : sequence(p.sequences.sequences[tile.sequence]), first(tile.first), head(query_head) {
    const int group = p.heads / p.kv_heads, first_position = sequence.first_position + first;
    heads = sequence.rows <= kTileRows ? group - head % group : 0;
    end = sequence.first_position + min(first + kGroups * kTileRows, sequence.rows);
    first_block = (p.window ? max(0, first_position - p.window + 1) : 0) / kKeyBlock;
    last_block = (end - 1) / kKeyBlock;
  }
  // Whether another CTA has this head among its units.
  __device__ bool elsewhere(const Forward& p) const {
    return heads != 0 && head % (p.heads / p.kv_heads) % kGroups != 0;
  }
  __device__ Unit unit(int g) const {
    if (heads) return {.head = head + g, .first = first, .present = g < heads ? sequence.rows - first : 0};
    const int own = first + g * kTileRows;
    return {.head = head, .first = own, .present = sequence.rows - own};
  }
};

template <int kDim>
struct Shared {
  bf16 queries[kGroups][kTileRows * kDim];
  bf16 slots[kSlots][kKeyBlock * kDim];
  Ring<kSlots> ring;
  Ring<kGroups> queries_ring;  // each barrier is used once per work item
  WorkQueue<Work, kQueuedItems> work_items;
  alignas(16) float4 totals[1];  // [kDim / 8][kGroups * kWarpgroup], where a row can see two spans
};

template <int kDim>
__device__ __forceinline__ void load_queries(Shared<kDim>& shared, const Forward& p, const Work& work,
                                             const TileLoader<kDim>& loader, int round) {
  for (int g = 0; g < kGroups; ++g) {
    const Unit unit = work.unit(g);
    shared.queries_ring.empty[g].wait(round ^ 1);
    if (unit.present > 0)
      loader.rows(shared.queries[g], p.q, int64_t{work.sequence.row_begin} + unit.first, unit.head * kDim,
                  unit.present);
    shared.queries_ring.full[g].arrive_after_copies();
  }
}

template <int kDim>
__device__ __forceinline__ void load_work(Shared<kDim>& shared, const Forward& p, const Work& work,
                                          const TileLoader<kDim>& loader, RingPlace<kSlots>& at, int round) {
  constexpr int kHeadElements = static_cast<int>(kKvBlock) * kDim;
  const KvPlace place{.blocks = p.sequences.blocks + work.sequence.block_begin,
                      .offset = p.kv_offset + int64_t{work.head / (p.heads / p.kv_heads)} * kHeadElements,
                      .value_offset = p.kv_heads * kHeadElements,
                      .head_dim = kDim,
                      .end = work.end};
  const bf16* from[4];
  find_positions(from, place, work.first_block * kKeyBlock);
  for (int block = work.first_block; block <= work.last_block; ++block) {
    for (int half = 0; half < 2; ++half, at.advance()) {
      shared.ring.empty[at.stage].wait(at.round ^ 1);
      loader.positions(shared.slots[at.stage], from, half ? place.value_offset : 0, place.end - block * kKeyBlock);
      shared.ring.full[at.stage].arrive_after_copies();
    }
    // Loaded after the first keys and values: the last item's query buffers become free later than the ring's stages.
    if (block == work.first_block) load_queries<kDim>(shared, p, work, loader, round);
    find_positions(from, place, (block + 1) * kKeyBlock);
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Forward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  TileGroups<kGroups, false> groups;
  RingPlace<kSlots> at;
  RingPlace<kQueuedItems> work_at;
  Work work;
  int round = 0;
  for (int item = 0;; ++item) {
    const int index = work_index(item);
    const QueryTile tile = groups.find(p.sequences, index / p.heads);
    if (tile.sequence < 0) break;
    work = Work(p, tile, index % p.heads);
    if (work.elsewhere(p)) continue;
    shared.work_items.hand_over(work_at, work, thread);
    load_work<kDim>(shared, p, work, loader, at, round);
    round ^= 1;
  }
  work.head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// Skips blocks that no row of this warpgroup sees.
template <int kDim>
__device__ __forceinline__ void skip_blocks(Shared<kDim>& shared, RingPlace<kSlots>& at, int blocks, int lane) {
  for (int i = 0; i < 2 * blocks; ++i, at.advance()) {
    shared.ring.full[at.stage].wait(at.round);
    release_stage(shared.ring.empty[at.stage], lane);
  }
}

// Processes blocks first .. last. A block's scores are issued together with the matmul of the previous block's values.
template <int kDim>
__device__ __forceinline__ void process_blocks(WarpRows<kDim>& rows, Shared<kDim>& shared, RingPlace<kSlots>& at,
                                               int group, float4* totals, int first, int last, float c, int lane) {
  constexpr int kStep = kGroups * kWarpgroup;
  float s[8][4];
  uint32_t weights[4][4];
  const auto start_scores = [&] {
    shared.ring.full[at.stage].wait(at.round);
    fence_for_wgmma();
    wgmma_fence();
    start_rows_by_rows<kDim>(s, shared.queries[group], shared.slots[at.stage]);
    wgmma_commit();
  };
  bool first_span = true;
  int values_slot = 0;
  const auto take_scores = [&](int block) {
    wgmma_wait<0>();
    pin(s), pin(rows.o), pin(weights);
    release_stage(shared.ring.empty[at.stage], lane);
    if (block == last) release_stage(shared.queries_ring.empty[group], lane);
    if (block > first) {
      release_stage(shared.ring.empty[values_slot], lane);
      if (block % kBlocksPerSpan == 0) {
        rows.end_span(totals, kStep, first_span, false, c);
        first_span = false;
      }
    }
    rows.softmax(s, block * kKeyBlock, c, lane);
    pack_weights(weights, s);
    at.advance();
    values_slot = at.stage;
    shared.ring.full[at.stage].wait(at.round);
    fence_for_wgmma();
    wgmma_fence();
    start_weighted_rows<kDim>(rows.o, weights, shared.slots[at.stage]);
    wgmma_commit();
    at.advance();
  };
  rows.begin_span();
  pin(rows.o);  // zero the registers here, not while matmuls are in flight
  start_scores();
  for (int block = first; block < last; ++block) {
    take_scores(block);
    start_scores();
  }
  take_scores(last);
  wgmma_wait<0>();
  pin(rows.o), pin(weights);
  release_stage(shared.ring.empty[values_slot], lane);
  rows.end_span(totals, kStep, first_span, true, c);
}

template <int kDim>
__device__ __forceinline__ void compute_unit(Shared<kDim>& shared, const Forward& p, const Work& work,
                                             RingPlace<kSlots>& at, int group, int lane) {
  const Unit unit = work.unit(group);
  const int position = work.sequence.first_position + unit.first, row_of_warp = 16 * (threadIdx.x / 32 & 3);
  const int first = (p.window ? max(0, position - p.window + 1) : 0) / kKeyBlock;
  const int last = (position + min(unit.present, kTileRows) - 1) / kKeyBlock;
  WarpRows<kDim> rows;
  place_rows(rows, position + row_of_warp, p.window, lane);
  skip_blocks(shared, at, first - work.first_block, lane);
  float4* const totals = shared.totals + (threadIdx.x - kWarpgroup);
  process_blocks(rows, shared, at, group, totals, first, last, p.c, lane);
  skip_blocks(shared, at, work.last_block - last, lane);
  store_rows(rows, p, int64_t{work.sequence.row_begin} + unit.first + row_of_warp, unit.head,
             unit.present - row_of_warp, lane);
}

template <int kDim>
__device__ __forceinline__ void compute(Shared<kDim>& shared, const Forward& p, int group, int lane) {
  RingPlace<kSlots> at;
  RingPlace<kQueuedItems> work_at;
  for (int round = 0;; round ^= 1) {
    const Work work = shared.work_items.take(work_at, lane);
    if (work.head < 0) return;
    shared.queries_ring.full[group].wait(round);
    if (work.unit(group).present > 0) {
      compute_unit<kDim>(shared, p, work, at, group, lane);
    } else {
      release_stage(shared.queries_ring.empty[group], lane);
      skip_blocks(shared, at, work.last_block - work.first_block + 1, lane);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const __grid_constant__ Forward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(kWarpgroup, kGroups);
      shared.queries_ring.init(kWarpgroup, 1);
      shared.work_items.init(kGroups);
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == 0) {
      release_registers<kLoading>();
      load<kDim>(shared, p, threadIdx.x);
    } else {
      claim_registers<kComputing>();
      compute<kDim>(shared, p, warpgroup - 1, threadIdx.x & 31);
    }
  } else {
    __trap();
  }
}

template <int kDim>
void launch(const Forward& p, int multiprocessors, cudaStream_t stream) {
  constexpr int kTotals = kGroups * kWarpgroup * kDim / 8 * static_cast<int>(sizeof(float4));
  constexpr int kTiles = sizeof(Shared<kDim>) + kTileAlignment;
  // No running totals are needed where no row can see two spans.
  const int bytes = kTiles + (p.sequences.max_positions > kKeySpan ? kTotals : 0);
  const int64_t ctas = std::min<int64_t>(max_groups(p.sequences, kGroups) * p.heads, multiprocessors);
  allow_shared(forward_kernel<kDim>, kTiles + kTotals, "attention_forward");
  forward_kernel<kDim><<<static_cast<unsigned>(ctas), kThreads, bytes, stream>>>(p);
}

}  // namespace

bool takes_wgmma(const Forward& p) {
  return (p.head_dim == 64 || p.head_dim == 128) && p.q.by_16 && has_sm90();
}

void launch_forward_wgmma(const Forward& p, Stream& stream) {
  const int multiprocessors = library_of(stream).multiprocessors;
  p.head_dim == 64 ? launch<64>(p, multiprocessors, stream_of(stream))
                   : launch<128>(p, multiprocessors, stream_of(stream));
}

}  // namespace lockstep::kernels::cuda
