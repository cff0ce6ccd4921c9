// What a matmul of many rows consists of on compute capability 9.0 (linear_tiles.cu): its tiles and their order, the
// shared memory that a warp fills by TMA, and the wgmma instruction.
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/lora_wgmma.cuh"
#include "kernels/cuda/qk_norm_rope_arguments.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kRowsPerTile = 128;                     // of x, per block
inline constexpr int kSlab = 64;                             // columns of a slab: 128 bytes, the width of TMA's swizzle
inline constexpr uint32_t kSlabBytes = 64 * kSlab * 2;       // 64 rows of a slab
inline constexpr uint32_t kWarpStoreBytes = 16 * kSlab * 2;  // a warp's rows of a slab
inline constexpr int kPairedBlocks = 2;                      // of a cluster: neighbours in rows, which share the weight
inline constexpr int kTileThreads = 3 * kWarpgroup;          // one warpgroup loads, two compute

// A tile of y and what shared memory holds of it: a ring of kStages of 64 k, and 2 KB for each computing warp to store
// from. Each computing warpgroup has 64 of the rows.
inline constexpr int kTileColumns = 256, kTileSlabs = kTileColumns / kSlab;
inline constexpr uint32_t kXBytes = kRowsPerTile * 128, kWBytes = kTileColumns * 128, kStageBytes = kXBytes + kWBytes;
inline constexpr uint32_t kStoreBytes = 8 * kWarpStoreBytes;
inline constexpr int kStages = (kMaxShared - 1024 - kStoreBytes - CopyRing::kBarrierBytes) / kStageBytes;
inline constexpr size_t kTileSharedBytes = 1024 + kStages * kStageBytes + kStoreBytes + CopyRing::kBarrierBytes;
inline constexpr int kReaders = 8 * kPairedBlocks;  // warps that release a stage
inline constexpr int kMaxGroups = 4;                // of 16 ranks, whose h and B fit into a stage
using Sums = float[kTileColumns / 8][4];            // of a warpgroup's 64 rows

// One pair of an adapter whose h B is added: columns [begin, end) of y, `groups` groups of 16 ranks from h_group on in
// h and from b_group on in the rows of the stage that hold B.
struct TilePair {
  int begin = 0, end = 0, h_group = 0, b_group = 0, groups = 0;
  float scale = 1;
};

// What the epilogue adds: nothing, one pair to each column, all pairs to all columns; or a single pair whose h the
// launch computes itself.
enum class Adds { nothing, pair, pairs, computed };

// A stage of a launch that computes h has 16 ranks of A behind the weight.
inline constexpr int kComputedRanks = 16;
inline constexpr uint32_t kRanksBytes = kComputedRanks * 128;
template <Adds kAdds>
inline constexpr uint32_t kStageBytesWith = kStageBytes + (kAdds == Adds::computed ? kRanksBytes : 0);
template <Adds kAdds>
inline constexpr size_t kSharedBytesWith = kTileSharedBytes + kStages * (kStageBytesWith<kAdds> - kStageBytes);
static_assert(kSharedBytesWith<Adds::computed> <= kMaxShared);

// How it ends: y is stored; a residual is added before the first rounding, and y is stored; SwiGLU of y is stored; y
// are logits, of which softmax's sums and weights are stored (TileLogprob); y are heads, of which queries are stored
// and keys and values go to the KV cache.
enum class End { plain, residual, swiglu, logprob, logprob_entropy, heads };

struct TileCall {
  bf16* y = nullptr;  // what is stored
  int64_t y_stride = 0;
  int rows = 0, columns = 0, width = 0;  // columns of the matmul, and of what is stored
  int steps = 0;                         // of 64 k
  int row_pairs = 0, across = 0;         // tiles: pairs of blocks below each other, and beside each other
  // Columns from one tile to the next, and from the first half of a tile to the second. SwiGLU: a tile has gates, and
  // the ups that belong to them.
  int column_step = kTileColumns, half_step = kTileColumns / 2;
  // Neighbouring tiles of the same rows that a cluster computes one after the other, and how many such runs the columns
  // take. Adds::computed: h comes with the first tile of a run and stays in registers for the others.
  int run = 1, runs = 0;
  bf16* h = nullptr;  // Adds::computed: where h goes besides, or nullptr
  int h_stride = 0, rank = 0;
  bool sum = false;  // all pairs add to all columns, without a scale, before the one rounding
  int pairs = 0;
  TilePair pair[kMaxSitePairs];
  TileLogprob logprob;
  QkNormRopeArguments heads = {};  // End::heads

  // Calls f(p, pair[p]) for the pair that adds to a column. The loop is unrolled: an index that is known only at run
  // time would wait for constant memory, which takes a tenth of a tile's time.
  template <class F>
  __device__ __forceinline__ void with_pair_of(int column, const F& f) const {
#pragma unroll
    for (int p = 0; p < kMaxSitePairs; ++p)
      if (p < pairs && column >= pair[p].begin && column < pair[p].end) f(p, pair[p]);
  }
  __device__ int slab_column(int tile_column, int slab) const {
    return tile_column + slab % 2 * kSlab + slab / 2 * half_step;
  }
};

struct TileMaps {
  CUtensorMap x, w, residual, h, a, b[kMaxSitePairs];
};
static_assert(sizeof(TileMaps) + sizeof(TileCall) <= 4096);  // what the parameters of a launch may take

// The tiles of a cluster, in an order in which clusters that run at the same time share rows of x and weights in the L2
// cache: kRowPairs pairs of rows, then the next columns. Runs of several tiles: all columns of a pair of rows.
struct TileWalk {
  static constexpr int kRowPairs = 8;
  int index, row, column;  // of the run; first row of the block's tile, first column
  int rank;
  int tile_of_run = 0;

  __device__ static TileWalk begin(const TileCall& call, int rank) {
    TileWalk walk{.index = static_cast<int>(blockIdx.x) / kPairedBlocks, .rank = rank};
    if (!walk.ended(call)) walk.place(call);
    return walk;
  }
  __device__ bool ended(const TileCall& call) const { return index >= call.row_pairs * call.runs; }
  __device__ bool begins_run() const { return tile_of_run == 0; }
  __device__ void next(const TileCall& call) {
    if (++tile_of_run == call.run || index % call.runs * call.run + tile_of_run == call.across) {
      tile_of_run = 0;
      index += static_cast<int>(gridDim.x) / kPairedBlocks;
    }
    if (!ended(call)) place(call);
  }

 private:
  __device__ void place(const TileCall& call) {
    if (call.run > 1) {
      row = (index / call.runs * kPairedBlocks + rank) * kRowsPerTile;
      column = (index % call.runs * call.run + tile_of_run) * call.column_step;
      return;
    }
    const int group = index / (kRowPairs * call.across), at = index % (kRowPairs * call.across);
    const int here = min(kRowPairs, call.row_pairs - group * kRowPairs);
    row = ((group * kRowPairs + at % here) * kPairedBlocks + rank) * kRowsPerTile;
    column = at / here * call.column_step;
  }
};

// The box goes to the same place in both blocks of the cluster.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const CUtensorMap& from, int col, int row,
                                                 uint32_t barrier) {
  copy_box_to_blocks(to, from, col, row, barrier, 3);
}

// ---- matmuls ----

#define LOCKSTEP_ROW(how, d, j) how(d[j][0]), how(d[j][1]), how(d[j][2]), how(d[j][3])
#define LOCKSTEP_ROWS_4(how, d, j) \
  LOCKSTEP_ROW(how, d, j), LOCKSTEP_ROW(how, d, j + 1), LOCKSTEP_ROW(how, d, j + 2), LOCKSTEP_ROW(how, d, j + 3)
#define LOCKSTEP_ROWS_8(how, d, j) LOCKSTEP_ROWS_4(how, d, j), LOCKSTEP_ROWS_4(how, d, j + 4)
#define LOCKSTEP_TILE_STEP(how)                                                                          \
  asm volatile(                                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "                                           \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "  \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
      "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "  \
      "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "  \
      "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "    \
      "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "      \
      "%128, %129, add, 1, 1, 0, %131;\n}\n"                                                             \
      : LOCKSTEP_ROWS_8(how, d, 0), LOCKSTEP_ROWS_8(how, d, 8), LOCKSTEP_ROWS_8(how, d, 16),             \
        LOCKSTEP_ROWS_8(how, d, 24)                                                                      \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kByRows ? 1 : 0))
#define LOCKSTEP_OUT(x) "=f"(x)
#define LOCKSTEP_IN_OUT(x) "+f"(x)

// d (+)= a b, 64 x 256 x 16, both in shared memory; a is K-major, b K-major or (kByRows) MN-major. kFresh: d is an
// output only.
template <bool kByRows, bool kFresh = false>
__device__ __forceinline__ void tile_step(float (&d)[32][4], uint64_t a, uint64_t b, bool add) {
  if constexpr (kFresh)
    LOCKSTEP_TILE_STEP(LOCKSTEP_OUT);
  else
    LOCKSTEP_TILE_STEP(LOCKSTEP_IN_OUT);
}
#undef LOCKSTEP_IN_OUT
#undef LOCKSTEP_OUT
#undef LOCKSTEP_TILE_STEP
#undef LOCKSTEP_ROWS_8
#undef LOCKSTEP_ROWS_4
#undef LOCKSTEP_ROW

// Increment of a tile_descriptor's address: 64 rows.
inline constexpr uint64_t kNextRows = kSlabBytes / 16;

}  // namespace lockstep::kernels::cuda
