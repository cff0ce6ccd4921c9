// What one launch that computes dh, dB and dA is given, how it is cut into items of work, and how they are loaded
// (lora_large_backward.cu).
#pragma once

#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/lora_large.cuh"
#include "kernels/cuda/lora_wgmma.cuh"
#include "kernels/cuda/waiting.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kBlockRows = 256, kBoxRows = 64, kBoxes = kBlockRows / kBoxRows, kChunk = 64;  // columns of a stage
constexpr uint32_t kBoxBytes = kBoxRows * kChunk * sizeof(bf16), kWideBytes = kBoxes * kBoxBytes;
constexpr uint32_t kNarrowBoxBytes = kBoxRows * 16 * sizeof(bf16), kUnitBytes = kBoxes * kNarrowBoxBytes;
constexpr int kGroups = 3, kThreads = kGroups * kWarpgroup + 64;  // computing warpgroups, and two warps that load
constexpr int kMaxTasks = 4;                                      // dy of up to three pairs, then x

// Where the sums of 8 columns of h or dh go: (wide column i, column j) to partial[offset + i * wide_step + j * step].
struct Place {
  int64_t offset = 0;
  int wide_step = 0, step = 0;
};
struct Task {
  CUtensorMap wide, narrow, b;
  int cols = 0, narrow_cols = 0, first_place = 0;
  int first_item = 0, parts = 1;  // items per block of rows; 1 or 2 for dy
  int64_t dh_begin = 0;
  float scale = 1;

  __host__ __device__ int chunks() const { return (cols + kChunk - 1) / kChunk; }
  __host__ __device__ int units() const { return (narrow_cols + 15) / 16; }
};
struct Backward {
  Task task[kMaxTasks];
  Place place[24];
  int num_pairs = 0;  // tasks of dy; the one after them is of x
  int num_blocks = 0, x_chunks = 0, num_items = 0;
  uint32_t parts_of_dy = 0;  // how many items compute a block's dh, of all pairs
  LoraRows dh;
  const GradientBlock* blocks = nullptr;
  uint32_t* ready = nullptr;  // per block of rows: the items whose dh is complete
  float* partial = nullptr;
  int64_t partial_stride = 0;
  bool sums_stay_cached = false;  // dy and x leave the L2 cache before the sums do
};

template <int kRank, int kTotal>
struct Shape {
  static constexpr uint32_t kBBytes = kRank * kChunk * sizeof(bf16), kStageBytes = kWideBytes + kBBytes;
  static constexpr int kSlots = kTotal <= 64 ? 2 : 1;  // of narrow operands
  static constexpr uint32_t kSlotBytes = kTotal / 16 * kUnitBytes, kNarrowBytes = kSlots * kSlotBytes;
  static constexpr size_t kFixed = 1024 + kNarrowBytes + CopyRing::kBarrierBytes + 64;
  static constexpr int kStages = static_cast<int>((kMaxShared - kFixed) / kStageBytes);
  static constexpr size_t kShared = kFixed + kStages * kStageBytes;
};

struct Item {
  int task = 0, first_chunk = 0, chunks = 0, index = 0;
  int part = 0, parts = 1;  // which of how many items of dy that share the block
  GradientBlock block;

  __device__ Item(const Backward& args, int item) {
    while (task < args.num_pairs && item >= args.task[task + 1].first_item) ++task;
    const Task& its = args.task[task];
    part = (item - its.first_item) / args.num_blocks;
    index = item - its.first_item - part * args.num_blocks;
    block = args.blocks[index];
    chunks = its.chunks();
    if (task < args.num_pairs) {
      parts = its.parts;
    } else {
      first_chunk = part * args.x_chunks;
      chunks = min(chunks - first_chunk, args.x_chunks);
    }
  }
  // Whether the item needs all rows of its chunk c, for their sum; if not, only its own rows, for dh.
  __device__ bool sums(int c) const { return parts == 1 || c % 2 == part; }
  __device__ int boxes() const { return (block.rows + kBoxRows - 1) / kBoxRows; }
  __device__ int first_box(int c) const { return sums(c) ? 0 : part * (kBoxes / 2); }
  __device__ int end_box(int c) const { return sums(c) ? boxes() : min(boxes(), (part + 1) * (kBoxes / 2)); }
};

// The narrow operands of items, h or dh, in turn in kSlots places.
template <class S>
struct NarrowSlots {
  uint32_t shared, barriers;
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t at() const { return shared + slot * S::kSlotBytes; }
  __device__ uint32_t full() const { return barriers + 8 * slot; }
  __device__ uint32_t empty() const { return barriers + 16 + 8 * slot; }
  __device__ void next() {
    if (++slot == S::kSlots) slot = 0, parity ^= 1;
  }
  // Called by one thread.
  __device__ void init() const {
    NarrowSlots each = *this;
    for (int i = 0; i < S::kSlots; ++i, each.next()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), 4 * kGroups);
    }
  }
};

// ---- loading, each by one thread ----

// What the L2 cache does with what is read.
__device__ __forceinline__ uint64_t reading_policy(bool evict_first) {
  uint64_t policy;
  if (evict_first)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_box_by(uint64_t policy, uint32_t to, const CUtensorMap& from, int col, int row,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;\n" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(col), "r"(row), "l"(policy)
      : "memory");
}

template <class S>
__device__ void load_wide(const Backward& args, CopyRing ring) {
  const uint64_t policy = reading_policy(args.sums_stay_cached);
  bool first_round = true;
  for (int i = static_cast<int>(blockIdx.x); i < args.num_items; i += static_cast<int>(gridDim.x)) {
    const Item item(args, i);
    const Task& task = args.task[item.task];
    const bool is_dy = item.task < args.num_pairs;
    for (int c = 0; c < item.chunks; ++c) {
      const int column = (item.first_chunk + c) * kChunk;
      if (!first_round) barrier_wait(ring.empty(), ring.parity ^ 1);
      const int first = item.first_box(c), end = max(first, item.end_box(c));
      barrier_expect(ring.full(), (end - first) * kBoxBytes + (is_dy ? S::kBBytes : 0));
      for (int b = first; b < end; ++b)
        copy_box_by(policy, ring.at() + b * kBoxBytes, task.wide, column, item.block.row_begin + b * kBoxRows,
                    ring.full());
      if (is_dy) copy_box(ring.at() + kWideBytes, task.b, column, 0, ring.full());
      ring.next();
      if (ring.stage == 0) first_round = false;
    }
  }
}

__device__ __forceinline__ uint32_t load_acquired(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Between accesses by threads and by TMA.
__device__ __forceinline__ void fence_for_copies() {
  asm volatile("fence.proxy.async;\n" ::: "memory");
}

// Waits until the block's dh is complete. That cannot last for ever: an item waits for items before it alone, every
// thread block computes its items in order, and there are at most as many thread blocks as multiprocessors, so all of
// them run, as soon as earlier kernels have ended; only one stream makes such launches (lora_gradient.cu). Should that
// ever not be so (another process by MPS, fewer multiprocessors than the device has), the launch fails.
__device__ void wait_for_dh(const Backward& args, const Item& item) {
  const int64_t begin = clock64();
  while (load_acquired(args.ready + item.index) != args.parts_of_dy)
    if (clock64() - begin > kMaxWaitedCycles) __trap();
  fence_for_copies();
}

template <class S>
__device__ void load_narrow(const Backward& args, NarrowSlots<S> slots) {
  bool first_round = true;
  for (int i = static_cast<int>(blockIdx.x); i < args.num_items; i += static_cast<int>(gridDim.x)) {
    const Item item(args, i);
    const Task& task = args.task[item.task];
    if (!first_round) barrier_wait(slots.empty(), slots.parity ^ 1);
    if (item.task == args.num_pairs) wait_for_dh(args, item);
    barrier_expect(slots.full(), item.boxes() * task.units() * kNarrowBoxBytes);
    for (int u = 0; u < task.units(); ++u)
      for (int b = 0; b < item.boxes(); ++b)
        copy_box(slots.at() + u * kUnitBytes + b * kNarrowBoxBytes, task.narrow, 16 * u,
                 item.block.row_begin + b * kBoxRows, slots.full());
    slots.next();
    if (slots.slot == 0) first_round = false;
  }
}

}  // namespace
}  // namespace lockstep::kernels::cuda
