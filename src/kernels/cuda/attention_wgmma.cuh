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
  // Whether wait() would end at once.
  __device__ __forceinline__ bool is_done(int parity) {
    int done;
    asm volatile(
        "{\n.reg .pred complete;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.b32 %0, 1, 0, complete;\n}\n"
        : "=r"(done)
        : "r"(shared_address(&state)), "r"(parity)
        : "memory");
    return done != 0;
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

// All threads of a warpgroup wait for each other; barriers 0 and 1 are taken.
__device__ __forceinline__ void synchronize_warpgroup(int barrier) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
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

// Matrix descriptor of a tile whose rows of 128 bytes are swizzled, at a multiple of 1024 in shared memory.
// eight_rows: bytes between groups of 8 rows. For MN-major, slabs of 64 columns (of 64 rows) lie one after the other.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint64_t eight_rows = 1024) {
  constexpr uint64_t kSlab = kSlabElements * sizeof(bf16) / 16;
  return uint64_t{1} << 62 | eight_rows / 16 << 32 | kSlab << 16 | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ uint64_t tile_descriptor(const bf16* tile) {
  return tile_descriptor(shared_address(tile));
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
// d = a b^T, 64 x 64 x 16; a in registers, b K-major in shared memory.
__device__ __forceinline__ void wgmma_registers_first(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}\n"
      : LOCKSTEP_ROWS_8("=f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d += a b^T
__device__ __forceinline__ void wgmma_registers_by_rows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d += a b, or d = a b, 64 x 64 (or 128) x 16; a in registers, b MN-major in shared memory.
__device__ __forceinline__ void wgmma_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add = true) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"
      : LOCKSTEP_ROWS_8("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_registers(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                bool add = true) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}\n"
      : LOCKSTEP_ROWS_8("+f", d, 0), LOCKSTEP_ROWS_8("+f", d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
// d += a^T b, 64 x 64 (or 128) x 16, both MN-major in shared memory.
__device__ __forceinline__ void wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1, 1, 1, 1, 1;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_columns(float (&d)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 1, 1;\n"
      : LOCKSTEP_ROWS_8("+f", d, 0), LOCKSTEP_ROWS_8("+f", d, 8)
      : "l"(a), "l"(b));
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
// The same with the rows of a in registers (load_rows).
template <int kDim>
__device__ __forceinline__ void start_rows_by_rows(float (&d)[8][4], const uint32_t (&a)[kDim / 16][4], const bf16* b) {
  const uint64_t b_tile = tile_descriptor(b);
  wgmma_registers_first(d, a[0], b_tile);
#pragma unroll
  for (int k = 1; k < kDim / 16; ++k) wgmma_registers_by_rows(d, a[k], b_tile + column_step(k));
}
// Loads this warp's 16 rows of a tile as A fragments.
template <int kDim>
__device__ __forceinline__ void load_rows(uint32_t (&a)[kDim / 16][4], const bf16* tile, int lane) {
  const int row = 16 * (threadIdx.x / 32 & 3) + (lane & 15);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) ldmatrix_x4(a[k], tile + swizzled_offset(row, 2 * k + (lane >> 4)));
}
// Stores four 8 x 8 matrices: lanes 8 i .. 8 i + 7 have the addresses of the rows of matrix i.
__device__ __forceinline__ void stmatrix_x4(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  stmatrix_x4(shared_address(row), r);
}
// sum += weights tile, or sum = weights tile, over the tile's 64 rows in groups of 16.
template <int kDim>
__device__ __forceinline__ void start_weighted_rows(float (&sum)[kDim / 8][4], const uint32_t (&weights)[4][4],
                                                    const bf16* tile, bool add = true) {
  const uint64_t rows = tile_descriptor(tile);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_registers(sum, weights[k], rows + row_step(k), k > 0 || add);
}
__device__ __forceinline__ void pack_weights(uint32_t (&a)[4][4], const float (&x)[8][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pack_a(a[k], x[2 * k], x[2 * k + 1]);
}

}  // namespace lockstep::kernels::cuda
