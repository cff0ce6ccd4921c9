// attention_forward of tiles on Hopper: the rule of attention_common.cuh by warpgroup matmuls, whose chains and
// fragments are those of mma.sync. One warpgroup loads, three have 64 rows each and run apart, so that the softmax of
// one overlaps the matmuls of the others: three tiles of a head or, where a sequence has but one, three heads of a
// group.
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_wgmma.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kGroups = 3;  // warpgroups that compute
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kLoading = 32, kComputing = 160;  // registers of a thread
constexpr int kSlots = 5;                       // tiles of keys and of values, in turn

template <int kDim>
struct Shared {
  bf16 queries[kGroups][kTileRows * kDim];
  bf16 slots[kSlots][kKeyBlock * kDim];
  Ring<kSlots> ring;
  alignas(16) float4 totals[1];  // [kDim / 8][kGroups * kWarpgroup], where a row can see two spans
};

// 64 rows of a head, as far as they are present.
struct Unit {
  int head, first, present;
};

// What a CTA does.
template <int kDim>
struct Work {
  DeviceSequence sequence;
  int first, head, heads, end, first_block, last_block;  // heads: 0 if the units are tiles of one head

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
__device__ __forceinline__ void load(Shared<kDim>& shared, const Forward& p, const Work<kDim>& work, int thread) {
  const TileLoader<kDim> loader(thread);
  constexpr int kHeadElements = static_cast<int>(kKvBlock) * kDim;
  const KvPlace place{.blocks = p.sequences.blocks + work.sequence.block_begin,
                      .offset = p.kv_offset + int64_t{work.head / (p.heads / p.kv_heads)} * kHeadElements,
                      .value_offset = p.kv_heads * kHeadElements,
                      .head_dim = kDim,
                      .end = work.end};
  const bf16* from[4];
  find_positions(from, place, work.first_block * kKeyBlock);
  for (int g = 0; g < kGroups; ++g) {
    const Unit unit = work.unit(g);
    if (unit.present > 0)
      loader.rows(shared.queries[g], p.q, int64_t{work.sequence.row_begin} + unit.first, unit.head * kDim,
                  unit.present);
  }
  RingPlace<kSlots> at;
  for (int block = work.first_block; block <= work.last_block; ++block) {
    for (int half = 0; half < 2; ++half, at.advance()) {
      shared.ring.empty[at.stage].wait(at.round ^ 1);
      loader.positions(shared.slots[at.stage], from, half ? place.value_offset : 0, place.end - block * kKeyBlock);
      shared.ring.full[at.stage].arrive_after_copies();
    }
    find_positions(from, place, (block + 1) * kKeyBlock);
  }
  copy_commit();
  copy_wait<0>();
}

// Blocks that no row of this warpgroup sees.
template <int kDim>
__device__ __forceinline__ void pass(Shared<kDim>& shared, RingPlace<kSlots>& at, int blocks, int lane) {
  for (int i = 0; i < 2 * blocks; ++i, at.advance()) {
    shared.ring.full[at.stage].wait(at.round);
    give_back(shared.ring.empty[at.stage], lane);
  }
}

// The blocks first .. last. Scores of a block are asked for together with the last block's values.
template <int kDim>
__device__ __forceinline__ void walk_blocks(WarpRows<kDim>& rows, Shared<kDim>& shared, RingPlace<kSlots>& at,
                                            const bf16* queries, float4* totals, int first, int last, float c,
                                            int lane) {
  constexpr int kStep = kGroups * kWarpgroup;
  float s[8][4];
  uint32_t weights[4][4];
  const auto start_scores = [&] {
    shared.ring.full[at.stage].wait(at.round);
    fence_for_products();
    begin_products();
    start_rows_by_rows<kDim>(s, queries, shared.slots[at.stage]);
    commit_products();
  };
  bool first_span = true;
  int values_slot = 0;
  const auto take_scores = [&](int block) {
    wait_products<0>();
    pin(s), pin(rows.o), pin(weights);
    give_back(shared.ring.empty[at.stage], lane);
    if (block > first) {
      give_back(shared.ring.empty[values_slot], lane);
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
    fence_for_products();
    begin_products();
    start_weighted_rows<kDim>(rows.o, weights, shared.slots[at.stage]);
    commit_products();
    at.advance();
  };
  rows.begin_span();
  pin(rows.o);  // zeros now, not while matmuls are under way
  start_scores();
  for (int block = first; block < last; ++block) {
    take_scores(block);
    start_scores();
  }
  take_scores(last);
  wait_products<0>();
  pin(rows.o), pin(weights);
  give_back(shared.ring.empty[values_slot], lane);
  rows.end_span(totals, kStep, first_span, true, c);
}

template <int kDim>
__device__ __forceinline__ void compute(Shared<kDim>& shared, const Forward& p, const Work<kDim>& work, int group,
                                        int lane) {
  const Unit unit = work.unit(group);
  RingPlace<kSlots> at;
  if (unit.present <= 0) return pass(shared, at, work.last_block - work.first_block + 1, lane);
  const int position = work.sequence.first_position + unit.first, row_of_warp = 16 * (threadIdx.x / 32 & 3);
  const int first = (p.window ? max(0, position - p.window + 1) : 0) / kKeyBlock;
  const int last = (position + min(unit.present, kTileRows) - 1) / kKeyBlock;
  WarpRows<kDim> rows;
  place_rows(rows, position + row_of_warp, p.window, lane);
  pass(shared, at, first - work.first_block, lane);
  float4* const totals = shared.totals + (threadIdx.x - kWarpgroup);
  walk_blocks(rows, shared, at, shared.queries[group], totals, first, last, p.c, lane);
  pass(shared, at, work.last_block - last, lane);
  store_rows(rows, p, int64_t{work.sequence.row_begin} + unit.first + row_of_warp, unit.head,
             unit.present - row_of_warp, lane);
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const Forward p) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(kTileAlignment) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kDim>*>(aligned_tiles(memory));
    const int index = static_cast<int>(blockIdx.x);
    const QueryTile tile = group_of_tiles<kGroups, false, kThreads>(p.sequences, index / p.heads);
    if (tile.sequence < 0) return;
    const Work<kDim> work(p, tile, index % p.heads);
    if (work.elsewhere(p)) return;
    if (threadIdx.x == 0) shared.ring.init(kWarpgroup, kGroups);
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == 0) {
      give_registers<kLoading>();
      load<kDim>(shared, p, work, threadIdx.x);
    } else {
      take_registers<kComputing>();
      compute<kDim>(shared, p, work, warpgroup - 1, threadIdx.x & 31);
    }
  } else {
    __trap();
  }
}

template <int kDim>
void launch(const Forward& p, cudaStream_t stream) {
  constexpr int kTotals = kGroups * kWarpgroup * kDim / 8 * static_cast<int>(sizeof(float4));
  constexpr int kTiles = sizeof(Shared<kDim>) + kTileAlignment;
  // No totals where no row can see two spans.
  const int bytes = kTiles + (p.sequences.max_positions > kKeySpan ? kTotals : 0);
  const auto ctas = static_cast<unsigned>(most_groups(p.sequences, kGroups) * p.heads);
  allow_shared(forward_kernel<kDim>, kTiles + kTotals, "attention_forward");
  forward_kernel<kDim><<<ctas, kThreads, bytes, stream>>>(p);
}

}  // namespace

bool takes_wgmma(const Forward& p) {
  return (p.head_dim == 64 || p.head_dim == 128) && p.q.by_16 && has_sm90();
}

void launch_forward_wgmma(const Forward& p, cudaStream_t stream) {
  p.head_dim == 64 ? launch<64>(p, stream) : launch<128>(p, stream);
}

}  // namespace lockstep::kernels::cuda
