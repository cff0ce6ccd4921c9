// dq on Hopper: the same sums in the same order as attention_backward.cu, computed with wgmma. One warpgroup loads. Two
// have 64 queries each (QueryWork); queries, dO, P and dS stay in registers. While one of them computes exponentials,
// its next matmuls or those of the other are in flight.
#include "kernels/cuda/attention_backward_wgmma.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kLoading = 40, kComputing = 232;  // registers per thread
constexpr int kStages = 4;
constexpr int kQueuedItems = 2;  // work items that may be queued ahead of the computing warpgroups

template <int kDim>
constexpr int kTileElements = kTileRows* kDim;

template <int kDim>
struct Shared {
  bf16 queries[kUnits][kTileElements<kDim>];
  bf16 gradients[kQueuedItems][kUnits][kTileElements<kDim>];  // dO, at last dq as it is stored
  bf16 keys[kStages][kTileElements<kDim>], values[kStages][kTileElements<kDim>];
  Ring<kStages> ring;
  Ring<kUnits> queries_ring;  // each barrier is used once per work item
  Ring<kUnits> gradients_ring[kQueuedItems];
  WorkQueue<QueryWork, kQueuedItems> work_items;
};

template <int kDim>
__device__ __forceinline__ void load_queries(Shared<kDim>& shared, const Backward& p, const QueryWork& work,
                                             const TileLoader<kDim>& loader, int round,
                                             const RingPlace<kQueuedItems>& gradients_at) {
  auto& gradients = shared.gradients[gradients_at.stage];
  auto& gradients_ring = shared.gradients_ring[gradients_at.stage];
  for (int g = 0; g < kUnits; ++g) {
    const Unit unit = work.unit(g);
    const int column = unit.head * kDim;
    shared.queries_ring.empty[g].wait(round ^ 1);
    if (unit.present > 0) loader.rows(shared.queries[g], p.q, work.row(unit), column, unit.present);
    shared.queries_ring.full[g].arrive_after_copies();
    gradients_ring.empty[g].wait(gradients_at.round ^ 1);
    if (unit.present > 0) loader.rows(gradients[g], p.d_o, work.row(unit), column, unit.present);
    gradients_ring.full[g].arrive_after_copies();
  }
}

template <int kDim>
__device__ __forceinline__ void load_work(Shared<kDim>& shared, const Backward& p, const QueryWork& work,
                                          const TileLoader<kDim>& loader, RingPlace<kStages>& at, int round,
                                          const RingPlace<kQueuedItems>& gradients_at) {
  const KvPlace place = keys_of(p, work.sequence, work.head / (p.heads / p.kv_heads), work.end);
  const bf16* from[4];
  find_positions(from, place, work.first_block * kKeyBlock);
  load_queries<kDim>(shared, p, work, loader, round, gradients_at);
  for (int block = work.first_block; block <= work.last_block; ++block, at.advance()) {
    const int present = place.end - block * kKeyBlock;
    shared.ring.empty[at.stage].wait(at.round ^ 1);
    loader.positions(shared.keys[at.stage], from, 0, present);
    loader.positions(shared.values[at.stage], from, place.value_offset, present);
    shared.ring.full[at.stage].arrive_after_copies();
    find_positions(from, place, (block + 1) * kKeyBlock);
  }
}

template <int kDim>
__device__ __forceinline__ void load(Shared<kDim>& shared, const Backward& p, int thread) {
  const TileLoader<kDim> loader(thread);
  QueryItems items(p, CountedIndices(p.counters, thread));
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at, gradients_at;
  QueryWork work;
  for (int round = 0; items.next(work); round ^= 1, gradients_at.advance()) {
    shared.work_items.hand_over(work_at, work, thread);
    load_work<kDim>(shared, p, work, loader, at, round, gradients_at);
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
    shared.ring.full[at.stage].wait(at.round);
    release_stage(shared.ring.empty[at.stage], lane);
  }
}

// The 64 queries of a warpgroup: q as A fragments, dO as a tile.
template <int kDim>
struct QueryTiles64 {
  uint32_t q[kDim / 16][4];
  const bf16* d_o;
};

// Adds up dq over blocks first .. last. A block's S and dP are started right behind the last matmul of the block
// before.
template <int kDim>
__device__ __forceinline__ void add_keys(float (&dq)[kDim / 8][4], Shared<kDim>& shared, RingPlace<kStages>& at,
                                         const QueryTiles64<kDim>& queries, const QueryRows& rows, int position,
                                         int window, int first, int last, float c, int lane) {
  float s[8][4], d[8][4];
  uint32_t ds[4][4];
  const auto start = [&] {
    shared.ring.full[at.stage].wait(at.round);
    fence_for_wgmma();
    wgmma_fence();
    start_rows_by_rows<kDim>(s, queries.q, shared.keys[at.stage]);
    wgmma_commit();
    start_rows_by_rows<kDim>(d, queries.d_o, shared.values[at.stage]);
    wgmma_commit();
  };
  pin(dq);  // zero the registers here, not while matmuls are in flight
  start();
  for (int block = first, before = -1;; ++block) {
    const int first_key = block * kKeyBlock, last_key = first_key + kKeyBlock - 1, stage = at.stage;
    at.advance();
    wgmma_wait<1>();
    pin(s), pin(dq), pin(ds);
    if (before >= 0) release_stage(shared.ring.empty[before], lane);
    before = stage;
    if (last_key > position || (window != 0 && first_key <= position + kTileRows - 1 - window))
      mask_block(s, first_key, rows.low, rows.high, lane);
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
    if (block == last) {
      wgmma_wait<0>();
      pin(dq);
      return release_stage(shared.ring.empty[stage], lane);
    }
    start();
  }
}

// dO . O of 16 rows and one head, by a warp: `delta` of the lane's rows lane / 4 and lane / 4 + 8, all of them to
// p.delta for dk and dv. The order of a sum is delta_kernel's.
template <int kDim>
__device__ __forceinline__ void dot_rows(float (&delta)[2], const Backward& p, int64_t row, int head, int present,
                                         int lane) {
  constexpr int kPasses = 8;  // two rows each, by 16 lanes
  const int chunk = lane & 15, column = head * kDim + 8 * chunk, half = lane / 16;
  uint4 a[kPasses] = {}, b[kPasses] = {};
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    if (2 * i + half < present && 8 * chunk < kDim) {
      a[i] = *reinterpret_cast<const uint4*>(p.d_o.at(row + 2 * i + half, column));
      b[i] = *reinterpret_cast<const uint4*>(p.o.at(row + 2 * i + half, column));
    }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float x[8], y[8], sum = 0;
    widen(x, a[i]), widen(y, b[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(x[j], y[j], sum);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (chunk == 0 && 2 * i + half < present) p.delta[(row + 2 * i + half) * p.delta_stride + head] = sum;
    const float of_row = __shfl_sync(~0u, sum, lane / 4 % 2 * 16);
    if (i == lane / 8) delta[0] = of_row;
    if (i == lane / 8 + 4) delta[1] = of_row;
  }
}

template <int kDim>
__device__ __forceinline__ void compute_unit(Shared<kDim>& shared, const Backward& p, const QueryWork& work,
                                             RingPlace<kStages>& at, bf16* gradients, int group, int lane) {
  const Unit unit = work.unit(group);
  const int warp = threadIdx.x / 32 & 3, position = work.sequence.first_position + unit.first;
  const int first = (p.window ? max(0, position - p.window + 1) : 0) / kKeyBlock;
  const int last = (position + min(unit.present, kTileRows) - 1) / kKeyBlock;
  QueryTiles64<kDim> queries;
  load_rows<kDim>(queries.q, shared.queries[group], lane);
  release_stage(shared.queries_ring.empty[group], lane);
  queries.d_o = gradients;
  QueryRows rows(p, work.row(unit), unit.head, unit.present, position, warp, lane);
  dot_rows<kDim>(rows.delta, p, work.row(unit) + 16 * warp, unit.head, unit.present - 16 * warp, lane);
  float dq[kDim / 8][4] = {};
  skip_blocks(shared, at, first - work.first_block, lane);
  add_keys<kDim>(dq, shared, at, queries, rows, position, p.window, first, last, p.c, lane);
  skip_blocks(shared, at, work.last_block - last, lane);
  synchronize_warpgroup(2 + group);  // no warp reads dO any more
  store_gradient_staged<kDim>(p.dq, dq, gradients + 16 * warp * kDim, work.row(unit) + 16 * warp, unit.head * kDim,
                              unit.present - 16 * warp, p.scale, lane);
}

template <int kDim>
__device__ __forceinline__ void compute(Shared<kDim>& shared, const Backward& p, int group, int lane) {
  RingPlace<kStages> at;
  RingPlace<kQueuedItems> work_at, gradients_at;
  for (int round = 0;; round ^= 1, gradients_at.advance()) {
    const QueryWork work = shared.work_items.take(work_at, lane);
    if (work.head < 0) return;
    auto& gradients_ring = shared.gradients_ring[gradients_at.stage];
    shared.queries_ring.full[group].wait(round);
    gradients_ring.full[group].wait(gradients_at.round);
    if (work.unit(group).present > 0) {
      compute_unit<kDim>(shared, p, work, at, shared.gradients[gradients_at.stage][group], group, lane);
    } else {
      release_stage(shared.queries_ring.empty[group], lane);
      skip_blocks(shared, at, work.last_block - work.first_block + 1, lane);
    }
    release_stage(gradients_ring.empty[group], lane);
  }
}

// dq for a work item: summed over blocks of keys in order.
template <int kDim>
__global__ void __launch_bounds__(kPersistentThreads, 1) query_kernel(const __grid_constant__ Backward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    if (threadIdx.x == 0) {
      shared.ring.init(kWarpgroup, kUnits);
      shared.queries_ring.init(kWarpgroup, 1);
      for (auto& ring : shared.gradients_ring) ring.init(kWarpgroup, 1);
      shared.work_items.init(kUnits);
    }
    split_warpgroups<kLoading, kComputing>([&](int thread) { load<kDim>(shared, p, thread); },
                                           [&](int group, int lane) { compute<kDim>(shared, p, group, lane); });
  } else {
    __trap();
  }
}

}  // namespace

bool takes_wgmma(const Backward& p) {
  return (p.head_dim == 64 || p.head_dim == 128) && p.q.by_16 && p.d_o.by_16 && p.o.by_16 && has_sm90();
}

void launch_query_gradients_wgmma(const Backward& p, Stream& stream) {
  const int64_t items = max_groups(p.sequences, kUnits) * p.heads;
  p.head_dim == 64 ? launch_persistent<query_kernel<64>, Shared<64>>(p, items, stream)
                   : launch_persistent<query_kernel<128>, Shared<128>>(p, items, stream);
}

}  // namespace lockstep::kernels::cuda
