// attention_forward of tiles on Hopper: what attention_common.cuh defines, computed by wgmma, whose accumulation order
// and fragments are those of mma.sync. One warpgroup loads. Two have 64 rows each (QueryWork). Each has the scores of
// its next block and the weighted values of its previous one in flight while it computes the exponentials of a block.
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_work.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kLoading = 40, kComputing = 232;  // registers per thread
constexpr int kStages = 4;                      // ring buffers of tiles of keys and of values
constexpr int kQueuedItems = 2;                 // work items that may be queued ahead of the computing warpgroups

template <int kDim>
struct Shared {
  bf16 queries[kUnits][kTileRows * kDim];
  bf16 keys[kStages][kKeyBlock * kDim], values[kStages][kKeyBlock * kDim];
  float4 totals[kUnits * 4][kDim / 8 * 32];  // of each warp: the running total of o, later o as it is stored
  Ring<kStages> keys_ring, values_ring;
  Ring<kUnits> queries_ring;  // each barrier is used once per work item
  WorkQueue<QueryWork, kQueuedItems> work_items;
};

template <int kDim>
__device__ __forceinline__ void load_queries(Shared<kDim>& shared, const Forward& p, const QueryWork& work,
                                             const TileLoader<kDim>& loader, int round) {
  for (int g = 0; g < kUnits; ++g) {
    const Unit unit = work.unit(g);
    shared.queries_ring.empty[g].wait(round ^ 1);
    if (unit.present > 0) loader.rows(shared.queries[g], p.q, work.row(unit), unit.head * kDim, unit.present);
    shared.queries_ring.full[g].arrive_after_copies();
  }
}

template <int kDim>
__device__ __forceinline__ void load_work(Shared<kDim>& shared, const Forward& p, const QueryWork& work,
                                          const TileLoader<kDim>& loader, RingPlace<kStages>& at, int round) {
  constexpr int kHeadElements = static_cast<int>(kKvBlock) * kDim;
  const KvPlace place{.blocks = p.sequences.blocks + work.sequence.block_begin,
                      .offset = p.kv_offset + int64_t{work.head / (p.heads / p.kv_heads)} * kHeadElements,
                      .value_offset = p.kv_heads * kHeadElements,
                      .head_dim = kDim,
                      .end = work.end};
  const bf16* from[4];
  find_positions(from, place, work.first_block * kKeyBlock);
  load_queries<kDim>(shared, p, work, loader, round);
  for (int block = work.first_block; block <= work.last_block; ++block, at.advance()) {
    const int present = place.end - block * kKeyBlock;
    shared.keys_ring.empty[at.stage].wait(at.round ^ 1);
    loader.positions(shared.keys[at.stage], from, 0, present);
    shared.keys_ring.full[at.stage].arrive_after_copies();
    shared.values_ring.empty[at.stage].wait(at.round ^ 1);
    loader.positions(shared.values[at.stage], from, place.value_offset, present);
    shared.values_ring.full[at.stage].arrive_after_copies();
    find_positions(from, place, (block + 1) * kKeyBlock);
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Forward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  QueryItems items(p, DealtIndices());
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  QueryWork work;
  for (int round = 0; items.next(work); round ^= 1) {
    shared.work_items.hand_over(work_at, work, thread);
    load_work<kDim>(shared, p, work, loader, at, round);
  }
  work.head = -1;
  shared.work_items.hand_over(work_at, work, thread);
  copy_commit();
  copy_wait<0>();
}

// Skips blocks that no row of this warpgroup sees.
template <int kDim>
__device__ __forceinline__ void skip_blocks(Shared<kDim>& shared, RingPlace<kStages>& at, int blocks, int lane) {
  for (int i = 0; i < blocks; ++i, at.advance()) {
    shared.keys_ring.full[at.stage].wait(at.round);
    release_stage(shared.keys_ring.empty[at.stage], lane);
    shared.values_ring.full[at.stage].wait(at.round);
    release_stage(shared.values_ring.empty[at.stage], lane);
  }
}

// Processes blocks first .. last. The values of a block are in flight beside the scores of the next block and while its
// exponentials are computed.
template <int kDim>
__device__ __forceinline__ void process_blocks(WarpRows<kDim>& rows, const uint32_t (&q)[kDim / 16][4],
                                               Shared<kDim>& shared, RingPlace<kStages>& at, float4* totals, int first,
                                               int last, float c, int lane) {
  float s[8][4];
  uint32_t weights[4][4];
  bool first_span = true;
  RingPlace<kStages> values_at = at;
  const auto await = [](Ring<kStages>& ring, const RingPlace<kStages>& place) {
    ring.full[place.stage].wait(place.round);
  };
  // Asked while matmuls are in flight, because the answer takes a while.
  const auto is_next_loaded = [](Ring<kStages>& ring, RingPlace<kStages> place) {
    place.advance();
    return ring.full[place.stage].is_done(place.round);
  };
  const auto start_scores = [&] {
    wgmma_fence();
    start_rows_by_rows<kDim>(s, q, shared.keys[at.stage]);
    wgmma_commit();
  };
  const auto start_values = [&](bool add) {
    wgmma_fence();
    start_weighted_rows<kDim>(rows.o, weights, shared.values[values_at.stage], add);
    wgmma_commit();
  };
  const auto await_values = [&] {
    wgmma_wait<0>();
    pin(rows.o), pin(weights);
    release_stage(shared.values_ring.empty[values_at.stage], lane);
    values_at.advance();
  };
  rows.reset_span();
  await(shared.keys_ring, at);
  fence_for_wgmma();
  start_scores();
  wgmma_wait<0>();
  pin(s);
  release_stage(shared.keys_ring.empty[at.stage], lane);
  at.advance();
  float f[2];
  rows.weigh(s, f, first * kKeyBlock, c, lane);
  pack_weights(weights, s);
  bool add = false, loaded = false;  // loaded: the keys and values that the next matmuls read are known to be there
  for (int block = first + 1; block <= last; ++block) {
    if (!loaded) await(shared.keys_ring, at), await(shared.values_ring, values_at);
    fence_for_wgmma();
    start_scores();
    start_values(add);
    loaded = is_next_loaded(shared.keys_ring, at) & is_next_loaded(shared.values_ring, values_at);
    add = block % kBlocksPerSpan != 0;
    wgmma_wait<1>();
    pin(s);
    release_stage(shared.keys_ring.empty[at.stage], lane);
    at.advance();
    if (!add) rows.join_span(c), rows.reset_span();
    rows.weigh(s, f, block * kKeyBlock, c, lane);
    // Ahead of the branch ptxas would put the wait before the exponentials.
    if (add) {
      await_values();
      rows.rescale_o(f);
    } else {
      await_values();
      if (!first_span) rows.join_o(totals, 32);
      rows.keep_o(totals, 32);
      first_span = false;
    }
    pack_weights(weights, s);
  }
  await(shared.values_ring, values_at);
  fence_for_wgmma();
  start_values(add);
  await_values();
  rows.join_span(c);
  if (!first_span) rows.join_o(totals, 32);
}

// store_rows by way of shared memory (store_staged) where the rows allow it.
template <int kDim>
__device__ __forceinline__ void store_rows_staged(const WarpRows<kDim>& rows, const Forward& p, bf16* staged,
                                                  int64_t row, int head, int present, int lane) {
  if (!p.o.by_16) return store_rows(rows, p, row, head, present, lane);
  const float inverse[2] = {rows.total[0].inverse(), rows.total[1].inverse()};
  store_staged<kDim>(staged, p.o, row, head * kDim, present, lane, [&](int n, int h) {
    return pack_bf16(finished(rows.o[n][2 * h], inverse[h]), finished(rows.o[n][2 * h + 1], inverse[h]));
  });
  store_stats(rows, p, row, head, present, lane);
}

template <int kDim>
__device__ __forceinline__ void compute_unit(Shared<kDim>& shared, const Forward& p, const QueryWork& work,
                                             RingPlace<kStages>& at, int group, int lane) {
  const Unit unit = work.unit(group);
  const int warp = threadIdx.x / 32 & 3, position = work.sequence.first_position + unit.first;
  const int first = (p.window ? max(0, position - p.window + 1) : 0) / kKeyBlock;
  const int last = (position + min(unit.present, kTileRows) - 1) / kKeyBlock;
  uint32_t q[kDim / 16][4];
  load_rows<kDim>(q, shared.queries[group], lane);
  release_stage(shared.queries_ring.empty[group], lane);
  WarpRows<kDim> rows;
  place_rows(rows, position + 16 * warp, p.window, lane);
  skip_blocks(shared, at, first - work.first_block, lane);
  float4* const totals = shared.totals[4 * group + warp];
  process_blocks<kDim>(rows, q, shared, at, totals + lane, first, last, p.c, lane);
  skip_blocks(shared, at, work.last_block - last, lane);
  store_rows_staged(rows, p, reinterpret_cast<bf16*>(totals), work.row(unit) + 16 * warp, unit.head,
                    unit.present - 16 * warp, lane);
}

template <int kDim>
__device__ __forceinline__ void compute(Shared<kDim>& shared, const Forward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at;
  for (int round = 0;; round ^= 1) {
    const QueryWork work = shared.work_items.take(work_at, lane);
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
__global__ void __launch_bounds__(kPersistentThreads, 1) forward_kernel(const __grid_constant__ Forward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.keys_ring.init(kWarpgroup, kUnits);
      shared.values_ring.init(kWarpgroup, kUnits);
      shared.queries_ring.init(kWarpgroup, 1);
      shared.work_items.init(kUnits);
    }
    split_warpgroups<kLoading, kComputing>([&](int thread) { load<kDim>(shared, p, thread); },
                                           [&](int group, int lane) { compute<kDim>(shared, p, group, lane); });
  } else {
    __trap();
  }
}

}  // namespace

bool takes_wgmma(const Forward& p) {
  return (p.head_dim == 64 || p.head_dim == 128) && p.q.by_16 && has_sm90();
}

void launch_forward_wgmma(const Forward& p, Stream& stream) {
  const int64_t items = max_groups(p.sequences, kUnits) * p.heads;
  p.head_dim == 64 ? launch_persistent<forward_kernel<64>, Shared<64>>(p, items, stream)
                   : launch_persistent<forward_kernel<128>, Shared<128>>(p, items, stream);
}

}  // namespace lockstep::kernels::cuda
