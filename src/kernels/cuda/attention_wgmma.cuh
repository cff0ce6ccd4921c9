// Hopper's warpgroup matmuls (wgmma) on tiles of 64 rows, and the barriers between loading and computing warps.
//
// A tile is kDim / 64 slabs of 64 rows x 64 columns of bf16: rows of 128 bytes whose chunks of 16 bytes are permuted by
// the row (chunk ^ row % 8), the 128-byte swizzle of the PTX ISA ("Shared memory matrix layout"). One tile serves as
// either operand: its rows as rows of A or columns of B (K-major), or its rows as the contraction of B (MN-major).
// Accumulators and A fragments lie in a warp as those of mma.sync do: warp w of the group has rows 16 w .. 16 w + 15.
//
// Only code compiled for sm_90a may use what is here: if constexpr (kHasWgmma).
#pragma once

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWgmma = true;
#else
inline constexpr bool kHasWgmma = false;
#endif

inline constexpr int kWarpgroup = 128;
inline constexpr int kSlabElements = 64 * 64, kTileAlignment = 1024;

// Rounds up to a multiple of kTileAlignment; the allocation is that much larger than its contents.
__device__ __forceinline__ unsigned char* aligned_tiles(unsigned char* memory) {
  return memory + (-shared_address(memory) & (kTileAlignment - 1));
}

// The offset of chunk `chunk` (8 columns) of a row.
__device__ __forceinline__ int swizzled_offset(int row, int chunk) {
  return (chunk >> 3) * kSlabElements + row * 64 + ((chunk ^ row) & 7) * 8;
}

// mbarrier. The n-th use of a barrier (from 0) is waited for with parity n & 1.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&state)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&state)) : "memory");
  }
  // Arrives when the cp.async copies that this thread has issued so far are complete.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(&state)) : "memory");
  }
  __device__ __forceinline__ void wait(int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n}\n" ::"r"(shared_address(&state)),
        "r"(parity)
        : "memory");
  }
};

// A ring buffer of stages: a stage is filled (full), then released (empty) by every computing warp.
template <int kStages>
struct Ring {
  Barrier full[kStages], empty[kStages];

  __device__ void init(int arrivals, int groups) {
    for (int i = 0; i < kStages; ++i) full[i].init(arrivals), empty[i].init(4 * groups);
  }
};
template <int kStages>
struct RingPlace {
  int stage = 0, round = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, round ^= 1;
  }
};
__device__ __forceinline__ void release_stage(Barrier& empty, int lane) {
  __syncwarp();
  if (lane == 0) empty.arrive();
}

// Makes what other threads copied into shared memory visible to this thread's wgmma.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Before the first matmul that reads or writes registers which other instructions have written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of registers that a matmul writes or reads across this point.
template <int kRows>
__device__ __forceinline__ void pin(float (&d)[kRows][4]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[i][e])::"memory");
}
__device__ __forceinline__ void pin(uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(a[i][e])::"memory");
}

// Matrix descriptor of a tile: 128-byte swizzle; 1024 bytes between groups of 8 rows; for MN-major also the distance
// between slabs of 64 columns.
__device__ __forceinline__ uint64_t tile_descriptor(const bf16* tile) {
  constexpr uint64_t kSlab = kSlabElements * sizeof(bf16) / 16, kEightRows = 1024 / 16;
  return uint64_t{1} << 62 | kEightRows << 32 | kSlab << 16 | (shared_address(tile) & 0x3ffff) >> 4;
}
// Increments of a descriptor's address, in units of 16 bytes: 16 columns (K-major), 16 rows (MN-major).
__host__ __device__ constexpr int column_step(int k) {
  return k / 4 * (kSlabElements * 2 / 16) + k % 4 * 2;
}
__host__ __device__ constexpr int row_step(int k) {
  return k * 128;
}

#define LOCKSTEP_ROW(how, d, j) how(d[j][0]), how(d[j][1]), how(d[j][2]), how(d[j][3])
#define LOCKSTEP_ROWS_8(how, d, j)                                                                                \
  LOCKSTEP_ROW(how, d, j), LOCKSTEP_ROW(how, d, j + 1), LOCKSTEP_ROW(how, d, j + 2), LOCKSTEP_ROW(how, d, j + 3), \
      LOCKSTEP_ROW(how, d, j + 4), LOCKSTEP_ROW(how, d, j + 5), LOCKSTEP_ROW(how, d, j + 6),                      \
      LOCKSTEP_ROW(how, d, j + 7)

// d = a b^T, 64 x 64 x 16, both K-major in shared memory. d is an output only: otherwise the compiler copies d, and
// the copy waits for matmuls in flight.
__device__ __forceinline__ void wgmma_shared_first(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n}\n"
      : LOCKSTEP_ROWS_8("=f", d, 0)
      : "l"(a), "l"(b));
}
// d += a b^T
__device__ __forceinline__ void wgmma_shared(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1, 1, 1, 0, 0;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0)
      : "l"(a), "l"(b));
}
// d += a b, 64 x 64 (or 128) x 16; a in registers, b MN-major in shared memory.
__device__ __forceinline__ void wgmma_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_registers(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0), LOCKSTEP_ROWS_8("+f", d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef LOCKSTEP_ROWS_8
#undef LOCKSTEP_ROW

// d = a b^T of two tiles, a chain over their columns in groups of 16.
template <int kDim>
__device__ __forceinline__ void start_rows_by_rows(float (&d)[8][4], const bf16* a, const bf16* b) {
  const uint64_t a_tile = tile_descriptor(a), b_tile = tile_descriptor(b);
  wgmma_shared_first(d, a_tile, b_tile);
#pragma unroll
  for (int k = 1; k < kDim / 16; ++k) wgmma_shared(d, a_tile + column_step(k), b_tile + column_step(k));
}
// sum += weights tile, over the tile's 64 rows in groups of 16.
template <int kDim>
__device__ __forceinline__ void start_weighted_rows(float (&sum)[kDim / 8][4], const uint32_t (&weights)[4][4],
                                                    const bf16* tile) {
  const uint64_t rows = tile_descriptor(tile);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_registers(sum, weights[k], rows + row_step(k));
}
__device__ __forceinline__ void pack_weights(uint32_t (&a)[4][4], const float (&x)[8][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pack_a(a[k], x[2 * k], x[2 * k + 1]);
}

// Loading, by the 128 threads of a warpgroup: a thread copies one chunk of every kStep-th row, so that its position in
// the swizzle is constant.
template <int kDim>
struct TileLoader {
  static constexpr int kChunks = kDim / 8, kStep = kWarpgroup / kChunks, kPieces = kTileRows / kStep;
  static constexpr int kPiece = kStep * kDim;  // elements copied per step
  static_assert(kStep % 8 == 0);
  int row, chunk, offset;

  __device__ explicit TileLoader(int thread)
      : row(thread / kChunks), chunk(thread % kChunks), offset(swizzled_offset(row, chunk)) {}

  // Copies rows of a matrix from `first` on; rows from `present` on become zeros.
  __device__ __forceinline__ void rows(bf16* tile, const HeadRows<const bf16>& from, int64_t first, int column,
                                       int present) const {
    const bf16* source = from.at(first + row, column + 8 * chunk);
#pragma unroll
    for (int i = 0; i < kPieces; ++i, source += kStep * from.stride) {
      const bool valid = row + i * kStep < present;
      copy_async_16(tile + offset + i * kStep * 64, valid ? source : from.data, valid);
    }
  }
  // Copies 64 positions, 16 from each of from[]; positions from `present` on become zeros.
  __device__ __forceinline__ void positions(bf16* tile, const bf16* const (&from)[4], int64_t shift,
                                            int present) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = i * kPiece % (static_cast<int>(kKvBlock) * kDim) + row * kDim + 8 * chunk;
      copy_async_16(tile + offset + i * kStep * 64, from[i * kStep / static_cast<int>(kKvBlock)] + shift + at,
                    row + i * kStep < present);
    }
  }
};

__device__ __forceinline__ void find_positions(const bf16* (&from)[4], const KvPlace& place, int position) {
#pragma unroll
  for (int b = 0; b < 4; ++b) from[b] = place.at(position + b * static_cast<int>(kKvBlock));
}

// Persistent CTAs, one per multiprocessor. The loading warpgroup finds the CTA's work items (a tile group and a head
// each), queues them for the computing warpgroups and loads ahead, so that an item need not wait for the previous one.

// The index of this CTA's n-th work item; it ascends with n. Odd rounds run from the last CTA to the first: as items
// are listed longest first, this gives all CTAs about the same amount of work.
__device__ __forceinline__ int work_index(int n) {
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  return n * ctas + (n & 1 ? ctas - 1 - cta : cta);
}

// A queue of work items from the loading warpgroup to the computing ones. An item is full when every loading warp has
// handed it over: if one warp's arrival were enough, the computing warps could take the item and release it twice while
// another loading warp has yet to look at `empty`, whose parity would then say that it is not free.
template <class Work, int kQueuedItems>
struct WorkQueue {
  Ring<kQueuedItems> ring;
  Work work_items[kQueuedItems];

  __device__ void init(int groups) { ring.init(kWarpgroup / 32, groups); }
  // Called by every thread of the loading warpgroup.
  __device__ __forceinline__ void hand_over(RingPlace<kQueuedItems>& at, const Work& work, int thread) {
    ring.empty[at.stage].wait(at.round ^ 1);
    if (thread == 0) work_items[at.stage] = work;
    __syncwarp();
    if (thread % 32 == 0) ring.full[at.stage].arrive();
    at.advance();
  }
  // Called by every computing warp.
  __device__ __forceinline__ Work take(RingPlace<kQueuedItems>& at, int lane) {
    ring.full[at.stage].wait(at.round);
    const Work work = work_items[at.stage];
    release_stage(ring.empty[at.stage], lane);
    at.advance();
    return work;
  }
};

// Groups of up to kTiles consecutive tiles of a sequence, in the order of the list of tiles or from its end.
// All threads of one warpgroup call this together.
template <int kTiles, bool kFromEnd>
class TileGroups {
 public:
  // The first tile of the n-th group; sequence -1 if there are fewer. n ascends from call to call.
  __device__ __forceinline__ QueryTile find(const DeviceSequences& sequences, int n) {
    __shared__ QueryTile found;
    __shared__ int counts[kWarpgroup / 32];
    if (!sequences.tiles) return {n < static_cast<int>(sequences.num_sequences) ? n : -1, 0};
    const int num_tiles = static_cast<int>(sequences.num_tiles);
    const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread & 31;
    while (begin_ < num_tiles) {
      const int i = begin_ + thread;
      QueryTile tile{-1, 0};
      if (i < num_tiles) tile = sequences.tiles[kFromEnd ? num_tiles - 1 - i : i];
      const bool begins = i < num_tiles && tile.first / kTileRows % kTiles == 0;
      const unsigned votes = __ballot_sync(~0u, begins);
      if (lane == 0) counts[warp] = __popc(votes);
      synchronize();
      int own = before_ + __popc(votes & ((1u << lane) - 1)), after = before_;
#pragma unroll
      for (int w = 0; w < kWarpgroup / 32; ++w) own += w < warp ? counts[w] : 0, after += counts[w];
      if (begins && own == n) found = tile;
      synchronize();
      if (n < after) {
        const QueryTile result = found;
        synchronize();
        return result;
      }
      begin_ += kWarpgroup, before_ = after;
    }
    return {-1, 0};
  }

 private:
  static __device__ __forceinline__ void synchronize() {
    asm volatile("bar.sync 1, 128;\n" ::: "memory");
  }

  int begin_ = 0, before_ = 0;  // the next tile to examine; how many groups begin before it
};
// An upper bound of the number of groups.
inline int64_t max_groups(const DeviceSequences& sequences, int tiles) {
  if (!sequences.tiles) return sequences.num_sequences;
  return (sequences.num_tiles + (tiles - 1) * sequences.num_sequences) / tiles;
}

}  // namespace lockstep::kernels::cuda
