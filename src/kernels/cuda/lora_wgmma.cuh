// wgmma with few columns, as the adapter's matmuls with the rank have them: d += a b, 64 x kN x 16, both in shared
// memory. Accumulators lie in a warp as those of mma.sync do: warp w of the group has rows 16 w .. 16 w + 15.
//
// Only code compiled for sm_90a may use what is here: if constexpr (kHasWgmma).
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"

namespace lockstep::kernels::cuda {

// Wide operands (box_map with 64 columns) have a tile_descriptor. Steps of 16 of the contraction: columns (kColumnStep)
// or, transposed, rows (kRowStep); in units of 16 bytes.
inline constexpr uint64_t kColumnStep = 2, kRowStep = 128;
// [unit][rows][16 columns], rows of 32 bytes (box_map with 16 columns); the contraction runs over rows.
__device__ __forceinline__ uint64_t narrow_descriptor(uint32_t tile, uint32_t unit_bytes) {
  constexpr uint64_t kEightRows = 256 / 16;
  return uint64_t{3} << 62 | kEightRows << 32 | uint64_t{unit_bytes / 16} << 16 | (tile & 0x3ffff) >> 4;
}
inline constexpr uint64_t kNarrowRowStep = 32;

#define LOCKSTEP_4(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define LOCKSTEP_8(d, j) LOCKSTEP_4(d, j), LOCKSTEP_4(d, j + 1)
#define LOCKSTEP_16(d, j) LOCKSTEP_8(d, j), LOCKSTEP_8(d, j + 2)
#define LOCKSTEP_WGMMA(shape, registers, operands, ...)                                               \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" registers "}, " operands "\n" \
               : __VA_ARGS__                                                                          \
               : "l"(a), "l"(b), "n"(kTransposed))
#define LOCKSTEP_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LOCKSTEP_R16 LOCKSTEP_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LOCKSTEP_R24 LOCKSTEP_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LOCKSTEP_R32 LOCKSTEP_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LOCKSTEP_R48 LOCKSTEP_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

// kTransposed: both operands have their rows as the contraction.
template <bool kTransposed, int kGroups>
__device__ __forceinline__ void wgmma_narrow(float (&d)[kGroups][4], uint64_t a, uint64_t b) {
  if constexpr (kGroups == 2)
    LOCKSTEP_WGMMA("m64n16k16", LOCKSTEP_R8, "%8, %9, 1, 1, 1, %10, %10;", LOCKSTEP_8(d, 0));
  else if constexpr (kGroups == 4)
    LOCKSTEP_WGMMA("m64n32k16", LOCKSTEP_R16, "%16, %17, 1, 1, 1, %18, %18;", LOCKSTEP_16(d, 0));
  else if constexpr (kGroups == 6)
    LOCKSTEP_WGMMA("m64n48k16", LOCKSTEP_R24, "%24, %25, 1, 1, 1, %26, %26;", LOCKSTEP_16(d, 0), LOCKSTEP_8(d, 4));
  else if constexpr (kGroups == 8)
    LOCKSTEP_WGMMA("m64n64k16", LOCKSTEP_R32, "%32, %33, 1, 1, 1, %34, %34;", LOCKSTEP_16(d, 0), LOCKSTEP_16(d, 4));
  else if constexpr (kGroups == 12)
    LOCKSTEP_WGMMA("m64n96k16", LOCKSTEP_R48, "%48, %49, 1, 1, 1, %50, %50;", LOCKSTEP_16(d, 0), LOCKSTEP_16(d, 4),
                   LOCKSTEP_16(d, 8));
  else
    static_assert(kGroups == 2, "no such number of columns");
}
#undef LOCKSTEP_WGMMA
#undef LOCKSTEP_4
#undef LOCKSTEP_8
#undef LOCKSTEP_16
#undef LOCKSTEP_R8
#undef LOCKSTEP_R16
#undef LOCKSTEP_R24
#undef LOCKSTEP_R32
#undef LOCKSTEP_R48

}  // namespace lockstep::kernels::cuda
