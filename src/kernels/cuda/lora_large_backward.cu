// dh = dy B^T, dB = h^T dy and dA = x^T dh in one launch that reads dy and x once. Compute capability 9.0.
//
// An item of work is one block of at most 256 rows of the gradients with all columns of dy that belong to one pair, or
// with some columns of x. It streams through a ring buffer in stages of 64 columns, so dh of the rows stays in
// registers, one chain over all columns, and the block's sum for 64 columns is complete after one stage. Two items may
// share a block's dy: each computes dh for half of the rows and the sums of every second stage, of which alone it loads
// all rows. Items of x come last: they wait until the items of dy have completed the block's dh. add_blocks then adds
// the blocks' sums in order. The bits are those of lora_large_reduce.cu and lora_large_gradient.cu.
#include "kernels/cuda/lora_large_backward.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <int kColumns>
struct Sums {
  float value[kColumns / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) value[j][e] = 0;
  }
};

__device__ __forceinline__ void release_barrier(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void store_zeros(uint32_t at) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(at), "r"(0) : "memory");
}
// Zeroes the rows after the block's last that share a group of 16 with it, [begin, end) of `row_bytes` each.
__device__ __forceinline__ void clear_rows(uint32_t tile, int begin, int end, int row_bytes, int thread) {
  for (int i = 16 * thread; i < (end - begin) * row_bytes; i += 16 * kWarpgroup)
    store_zeros(tile + begin * row_bytes + i);
}

// The block's sum for 64 columns: wide^T narrow.
template <int kColumns>
__device__ __forceinline__ void sum_rows(Sums<kColumns>& sums, uint32_t wide, uint32_t narrow, int rows, int group,
                                         int thread) {
  const uint64_t a = tile_descriptor(wide), b = narrow_descriptor(narrow, kUnitBytes);
  if (rows % 16 != 0) {
    clear_rows(wide, rows, (rows + 15) / 16 * 16, kChunk * sizeof(bf16), thread);
    fence_for_wgmma();
    synchronize_warpgroup(2 + group);
  }
  sums.clear();
  pin(sums.value);
  wgmma_fence();
  if (rows == kBlockRows) {
#pragma unroll
    for (int k = 0; k < kBlockRows / 16; ++k) wgmma_narrow<true>(sums.value, a + k * kRowStep, b + k * kNarrowRowStep);
    wgmma_commit();
    wgmma_wait<0>();
  } else {
#pragma unroll 1
    for (int k = 0; k < (rows + 15) / 16; ++k) {
      wgmma_narrow<true>(sums.value, a + k * kRowStep, b + k * kNarrowRowStep);
      wgmma_commit();
      wgmma_wait<0>();
    }
  }
  pin(sums.value);
}

template <int kColumns>
__device__ __forceinline__ void store_sums(const Sums<kColumns>& sums, const Backward& args, const Item& item,
                                           int column, int thread) {
  const Task& task = args.task[item.task];
  float* const to = args.partial + item.index * args.partial_stride;
  const int lane = thread % 32, wide = column + thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (8 * j >= task.narrow_cols) break;
    const Place& place = args.place[task.first_place + j];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (wide + 8 * half >= task.cols) continue;
      const float2 pair = {__fmul_rn(task.scale, sums.value[j][2 * half]),
                           __fmul_rn(task.scale, sums.value[j][2 * half + 1])};
      float* const at = to + place.offset + int64_t{wide + 8 * half} * place.wide_step + lane % 4 * 2 * place.step;
      if (place.step == 1)
        *reinterpret_cast<float2*>(at) = pair;
      else
        at[0] = pair.x, at[place.step] = pair.y;
    }
  }
}

// dh of the item's rows, scaled; then tells those that wait for it.
template <int kRank, int kCount>
__device__ __forceinline__ void store_dh(const Sums<kRank> (&dh)[kCount], const Backward& args, const Item& item,
                                         int first_box, int thread) {
  const Task& task = args.task[item.task];
  const int lane = thread % 32;
#pragma unroll
  for (int box = 0; box < kCount; ++box)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = kBoxRows * (first_box + box) + thread / 32 * 16 + lane / 4 + 8 * half;
      if (row >= item.block.rows) continue;
      bf16* const to = args.dh.y + (item.block.row_begin + row) * args.dh.stride + task.dh_begin + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kRank / 8; ++j)
        if (8 * j < task.narrow_cols)
          *reinterpret_cast<uint32_t*>(to + 8 * j) = pack_bf16(__fmul_rn(task.scale, dh[box].value[j][2 * half]),
                                                               __fmul_rn(task.scale, dh[box].value[j][2 * half + 1]));
    }
  fence_for_copies();
  synchronize_warpgroup(2);
  if (thread == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;\n" ::"l"(args.ready + item.index), "r"(1) : "memory");
}

template <int kRank, int kCount>
__device__ __forceinline__ void add_columns(Sums<kRank> (&dh)[kCount], uint32_t wide, uint32_t stage) {
  const uint64_t b = tile_descriptor(stage + kWideBytes);
#pragma unroll
  for (int box = 0; box < kCount; ++box) pin(dh[box].value);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k)
#pragma unroll
    for (int box = 0; box < kCount; ++box)
      wgmma_narrow<false>(dh[box].value, tile_descriptor(wide + box * kBoxBytes) + k * kColumnStep,
                          b + k * kColumnStep);
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int box = 0; box < kCount; ++box) pin(dh[box].value);
}

// What a computing warpgroup has. Group 0 computes dh while the others take turns with the sums of dy; all three take
// turns with those of x.
template <int kRank, int kTotal>
struct Computing {
  using S = Shape<kRank, kTotal>;
  const Backward& args;
  CopyRing ring;
  NarrowSlots<S> slots;
  int group, thread;

  template <bool kComputesDh>
  __device__ __forceinline__ void run() {
    for (int i = static_cast<int>(blockIdx.x); i < args.num_items; i += static_cast<int>(gridDim.x)) {
      const Item item(args, i);
      const int rows = item.block.rows;
      barrier_wait(slots.full(), slots.parity);
      if (rows % 16 != 0) {
        for (int u = 0; u < args.task[item.task].units(); ++u)
          clear_rows(slots.at() + u * kUnitBytes, rows, (rows + 15) / 16 * 16, 16 * sizeof(bf16), thread);
        fence_for_wgmma();
      }
      if (item.task == args.num_pairs)
        sums_of<kTotal>(item, 0);
      else if constexpr (!kComputesDh)
        sums_of<kRank>(item, 1);
      else if (item.parts == 1)
        dh_of<kBoxes>(item);
      else
        dh_of<kBoxes / 2>(item);
      release_barrier(slots.empty(), thread % 32);
      slots.next();
    }
  }

 private:
  __device__ __forceinline__ void release_stage() {
    release_barrier(ring.empty(), thread % 32);
    ring.next();
  }

  // For kCount boxes of rows.
  template <int kCount>
  __device__ __forceinline__ void dh_of(const Item& item) {
    const int first_box = item.part * kCount;
    Sums<kRank> dh[kCount];
#pragma unroll
    for (int box = 0; box < kCount; ++box) dh[box].clear();
    for (int c = 0; c < item.chunks; ++c) {
      barrier_wait(ring.full(), ring.parity);
      add_columns(dh, ring.at() + first_box * kBoxBytes, ring.at());
      release_stage();
    }
    store_dh(dh, args, item, first_box, thread);
  }

  // The groups from `first_group` on take turns.
  template <int kColumns>
  __device__ __forceinline__ void sums_of(const Item& item, int first_group) {
    int turn = first_group;
    for (int c = 0; c < item.chunks; ++c) {
      barrier_wait(ring.full(), ring.parity);
      const bool summed = item.sums(c);
      if (!summed || turn != group) {
        release_stage();
      } else {
        Sums<kColumns> sums;
        sum_rows(sums, ring.at(), slots.at(), item.block.rows, group, thread);
        release_stage();
        store_sums(sums, args, item, (item.first_chunk + c) * kChunk, thread);
      }
      if (summed && ++turn == kGroups) turn = first_group;
    }
  }
};

template <int kRank, int kTotal>
__global__ void __launch_bounds__(kThreads) backward_rows(const __grid_constant__ Backward args) {
  if constexpr (kHasWgmma) {
    using S = Shape<kRank, kTotal>;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    // Shuffled so that the compiler sees one value per warp.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = S::kStages,
                        .slack_bytes = S::kNarrowBytes};
    const uint32_t narrow = ring.shared + S::kStages * S::kStageBytes;
    const NarrowSlots<S> slots{.shared = narrow, .barriers = narrow + S::kNarrowBytes + CopyRing::kBarrierBytes};
    if (threadIdx.x == 0) slots.init(), ring.init(4 * kGroups);
    __syncthreads();
    begin_early();
    if (group == 0)
      Computing<kRank, kTotal>{args, ring, slots, group, thread}.template run<true>();
    else if (group < kGroups)
      Computing<kRank, kTotal>{args, ring, slots, group, thread}.template run<false>();
    else if (thread == 0)
      load_wide<S>(args, ring);
    else if (thread == 32)
      load_narrow<S>(args, slots);
  }
}

// ---- launching ----

template <int kRank, int kTotal>
void launch(const Backward& args, int multiprocessors, cudaStream_t stream) {
  using S = Shape<kRank, kTotal>;
  allow_shared<backward_rows<kRank, kTotal>>(S::kShared);
  launch_early(backward_rows<kRank, kTotal>, static_cast<unsigned>(std::min(args.num_items, multiprocessors)), kThreads,
               S::kShared, stream, args);
}

// Into how many parts the columns of x are cut: those that keep the busiest multiprocessor least busy.
int parts_of(int chunks, int blocks, int multiprocessors) {
  int best = 1, least = 0;
  for (int parts = 1; parts <= chunks; ++parts) {
    const int waves = (blocks * parts + multiprocessors - 1) / multiprocessors;
    const int busy = waves * ((chunks + parts - 1) / parts + 1);
    if (parts == 1 || busy < least) best = parts, least = busy;
  }
  return best;
}

// The widest pairs have two items per block of rows if they would otherwise keep less than a third of the
// multiprocessors busy, which do not read as fast as memory delivers. More of them do, and half of the rows are then
// read twice for nothing.
void split_items_of_dy(Backward& args, int multiprocessors) {
  Task* const end = args.task + args.num_pairs;
  int widest = 0, wide = 0;
  for (const Task* task = args.task; task < end; ++task) widest = std::max(widest, task->chunks());
  const auto is_wide = [&](const Task& task) { return 2 * task.chunks() > widest; };
  for (const Task* task = args.task; task < end; ++task) wide += is_wide(*task) ? args.num_blocks : 0;
  if (widest < 2 || 3 * wide > multiprocessors || args.num_pairs * args.num_blocks + wide > multiprocessors) return;
  for (Task* task = args.task; task < end; ++task)
    if (is_wide(*task)) task->parts = 2;
}

void number_items(Backward& args, int multiprocessors) {
  Task& x = args.task[args.num_pairs];
  const int parts = parts_of(x.chunks(), args.num_blocks, multiprocessors);
  args.x_chunks = (x.chunks() + parts - 1) / parts;
  x.parts = (x.chunks() + args.x_chunks - 1) / args.x_chunks;
  split_items_of_dy(args, multiprocessors);
  for (int t = 0; t <= args.num_pairs; ++t) {
    args.task[t].first_item = args.num_items;
    args.num_items += args.task[t].parts * args.num_blocks;
    if (t < args.num_pairs) args.parts_of_dy += static_cast<uint32_t>(args.task[t].parts);
  }
}

// False if a pair's memory is not aligned.   units: of 16 columns of h that a pair has, at most
bool add_tasks(Backward& args, const LoraBackward& call, int units) {
  int64_t begin = 0;
  int places = 0;
  for (const LoraPair& pair : call.pairs) {
    const int64_t out = pair.b[1], rank = pair.rank();
    const Operand dy = columns_of(call.dy, pair.out_begin, out), h = columns_of(call.h, begin, rank);
    const Operand b = operand(pair.b);
    if (!dy.aligned || !h.aligned || !b.aligned) return false;
    args.task[args.num_pairs] = {.wide = box_map(dy, kChunk, kBoxRows),
                                 .narrow = box_map(h, 16, kBoxRows),
                                 .b = box_map(b, kChunk, 16 * units),
                                 .cols = static_cast<int>(out),
                                 .narrow_cols = static_cast<int>(rank),
                                 .first_place = places,
                                 .dh_begin = begin,
                                 .scale = pair.scale};
    for (int64_t column = 0; column < rank; column += 8)
      args.place[places++] = {call.db[args.num_pairs] + column * out, 1, static_cast<int>(out)};
    begin += rank;
    ++args.num_pairs;
  }
  args.task[args.num_pairs] = {.wide = box_map(call.x, kChunk, kBoxRows),
                               .narrow = box_map(call.dh, 16, kBoxRows),
                               .cols = static_cast<int>(call.x.cols),
                               .narrow_cols = static_cast<int>(begin),
                               .first_place = places};
  for (int p = 0; p < args.num_pairs; ++p)
    for (int64_t rank = call.pairs[p].rank(), column = 0; column < rank; column += 8)
      args.place[places++] = {call.da[p] + column, static_cast<int>(rank), 1};
  return true;
}

}  // namespace

bool backward_large(const LoraBackward& call, int multiprocessors, cudaStream_t stream) {
  int64_t rank = 0;
  for (const LoraPair& pair : call.pairs) rank = std::max(rank, pair.rank());
  if (!has_copy_engine() || call.pairs.size() >= size_t{kMaxTasks} || rank == 0 || rank > 32 || !call.x.aligned ||
      !call.dh.aligned)
    return false;
  const int units = rank <= 16 ? 1 : 2;
  Backward args;
  if (!add_tasks(args, call, units)) return false;
  args.num_blocks = static_cast<int>(call.plan.num_blocks);
  number_items(args, multiprocessors);
  args.dh = {const_cast<bf16*>(call.dh.data), call.dh.stride, call.dh.rows};
  args.blocks = call.plan.blocks;
  args.ready = call.ready;
  args.partial = call.plan.partial;
  args.partial_stride = call.floats;
  constexpr int64_t kMostCachedFloats = int64_t{8} << 20;  // two thirds of the L2 cache
  args.sums_stay_cached = call.plan.num_blocks * call.floats <= kMostCachedFloats;
  constexpr void (*kLaunch[2][3])(const Backward&, int, cudaStream_t) = {
      {launch<16, 16>, launch<16, 32>, launch<16, 48>}, {launch<32, 32>, launch<32, 64>, launch<32, 96>}};
  kLaunch[units - 1][args.num_pairs - 1](args, multiprocessors, stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
