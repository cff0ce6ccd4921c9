// The epilogue of a matmul of many rows (linear_tiles.cu): adds, rounds and stores slab by
// slab.
#pragma once

#include "kernels/cuda/linear_tiles_ring.cuh"

namespace lockstep::kernels::cuda {

// The pair that adds to columns [begin, end); groups = 0: none does.
struct ColumnPair {
  int begin = 0, end = 0, h_group = 0, groups = 0;
  float scale = 1;

  __device__ bool has(int column) const { return column >= begin && column < end; }
  __device__ static ColumnPair of(const TileCall& call, int column) {
    ColumnPair found{.begin = column, .end = column + kSlab};
    call.with_pair_of(column, [&](int, const TilePair& pair) {
      found = {pair.begin, pair.end, pair.h_group, pair.groups, pair.scale};
    });
    return found;
  }
};

// The epilogue works on a slab: `words[j]` are the stored columns 8 j .. 8 j + 7 of row lane / 4 and of the row eight
// below, among a warp's 16 rows.
inline constexpr int kChunks = kSlab / 8;
using Words = uint32_t[kChunks][2];

// Address of chunk `chunk` of a lane's row of a swizzled slab, as ldmatrix and stmatrix want it.
__device__ __forceinline__ uint32_t chunk_at(uint32_t row, int chunk, int lane) {
  return row + ((chunk + lane / 16) ^ lane % 8) * 16;
}

// x W^T + residual, rounded. residual: a lane's row of the slab.
template <bool kResidual>
__device__ __forceinline__ void round_sums(Words& words, const Sums& sums, int slab, uint32_t residual, int lane) {
#pragma unroll
  for (int j = 0; j < kChunks; j += 2) {
    uint32_t r[4];
    if constexpr (kResidual) load_matrices(r, chunk_at(residual, j, lane));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&sum)[4] = sums[kChunks * slab + j + i / 2];
      float low = sum[i % 2 * 2], high = sum[i % 2 * 2 + 1];
      if constexpr (kResidual) {
        low = __fadd_rn(low, __uint_as_float(r[i] << 16));
        high = __fadd_rn(high, __uint_as_float(r[i] & 0xffff0000u));
      }
      words[j + i / 2][i % 2] = pack_bf16(low, high);
    }
  }
}

// 16 ranks of h of a warp's 16 rows, as the tensor core's first operand.
using RowRanks = uint32_t[4];

// Adds 16 ranks to the chunks from `first` on. b: a lane's row of those of B.
template <int kCount>
__device__ __forceinline__ void add_16_ranks(float (&sums)[kCount][4], int first, const RowRanks& h, uint32_t b,
                                             int lane) {
#pragma unroll
  for (int j = 0; j < kCount; j += 2) {
    uint32_t w[4];
    load_matrices_trans(w, chunk_at(b, first + j, lane));
    mma_16816(sums[j], h, {w[0], w[1]});
    mma_16816(sums[j + 1], h, {w[2], w[3]});
  }
}

// Adds `groups` groups of 16 ranks. h: a lane's row of h, in which they begin at chunk h_chunk; b: of their rows of B.
template <int kCount>
__device__ __forceinline__ void add_ranks(float (&sums)[kCount][4], int first, int groups, uint32_t h, int h_chunk,
                                          uint32_t b, int lane) {
#pragma unroll 1
  for (int g = 0; g < groups; ++g, h_chunk += 2, b += 16 * 128) {
    RowRanks ranks;
    load_matrices(ranks, chunk_at(h, h_chunk, lane));
    add_16_ranks(sums, first, ranks, b, lane);
  }
}

// Rounds h of a warp's 16 rows from `row` on and returns it as add_16_ranks takes it. stored: whether it goes to
// memory, too. What stands in the place of ranks beyond the pair's is 0 times x, which need not be 0.
__device__ __forceinline__ void round_ranks(RowRanks& ranks, const RankSums& sums, const TileCall& call, int row,
                                            bool stored, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&sum)[4] = sums[i / 2];
    const int at = row + lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
    ranks[i] = column < call.rank ? pack_bf16(sum[i % 2 * 2], sum[i % 2 * 2 + 1]) : 0;
    if (stored && at < call.rows && column < call.rank)
      *reinterpret_cast<uint32_t*>(call.h + int64_t{at} * call.h_stride + column) = ranks[i];
  }
}

// Adds f32 sums to rounded words, from chunk `first` on, and rounds again.
template <int kCount>
__device__ __forceinline__ void add_rounded(Words& words, const float (&sums)[kCount][4], int first) {
#pragma unroll
  for (int j = 0; j < kCount; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t& word = words[first + j][i];
      word = pack_bf16(__fadd_rn(__uint_as_float(word << 16), sums[j][2 * i]),
                       __fadd_rn(__uint_as_float(word & 0xffff0000u), sums[j][2 * i + 1]));
    }
}

// Adds the adapter's part and rounds again. h: a lane's row of h in shared memory; computed_h: h where the launch
// has computed it.
template <Adds kAdds>
__device__ __forceinline__ void add_adapter(Words& words, const TileCall& call, const ColumnPair& pair, uint32_t h,
                                            const RowRanks& computed_h, uint32_t b, int lane) {
  b += lane % 16 * 128;
  if constexpr (kAdds == Adds::pairs) {
    constexpr int kHalf = kChunks / 2;  // there are not enough registers for two sums of a whole slab
#pragma unroll
    for (int first = 0; first < kChunks; first += kHalf) {
      float sums[kHalf][4] = {};
      add_ranks(sums, first, call.pair[0].groups, h, 0, b, lane);
#pragma unroll
      for (int p = 1; p < kMaxSitePairs; ++p) {
        if (p >= call.pairs) break;
        float more[kHalf][4] = {};
        const int group = call.pair[p].h_group;
        add_ranks(more, first, call.pair[p].groups, h, 2 * group, b + group * 16 * 128, lane);
#pragma unroll
        for (int j = 0; j < kHalf; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[j][e] = __fadd_rn(more[j][e], sums[j][e]);
      }
      add_rounded(words, sums, first);
    }
  } else {
    if (pair.groups == 0) return;  // adding 0 would turn -0 into 0
    float sums[kChunks][4] = {};
    if constexpr (kAdds == Adds::computed)
      add_16_ranks(sums, 0, computed_h, b, lane);
    else
      add_ranks(sums, 0, pair.groups, h, 2 * pair.h_group, b, lane);
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] = __fmaf_rn(pair.scale, sums[j][e], 0.0f);
    add_rounded(words, sums, 0);
  }
}

// A warp's 16 rows of a tile. row: the place of a lane's row in a slab of the tile's 128 rows.
struct WarpRows {
  int block, warp, lane;  // of 64 rows; of its four warps
  uint32_t row, memory;   // memory: the warp's 2 KB

  __device__ explicit WarpRows(const CopyRing& ring) {
    const int number = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) - kWarpgroup / 32;
    block = number / 4, warp = number % 4, lane = static_cast<int>(threadIdx.x) % 32;
    row = block * kSlabBytes + 128 * (16 * warp + lane % 16);
    memory = ring.shared + ring.stages * ring.stage_bytes + number * kWarpStoreBytes;
  }
};

// A warp's rows of a slab pass through its shared memory, so that a lane has 16 bytes of each of four rows and a
// quarter of a warp a line of 128: values[i] is chunk lane % 8 of row 4 i + lane / 8. __syncwarp() must follow.
__device__ __forceinline__ void pass_slab(uint4 (&values)[4], const Words& words, const WarpRows& mine) {
  const int lane = mine.lane;
#pragma unroll
  for (int j = 0; j < kChunks; j += 2)
    stmatrix_x4(chunk_at(mine.memory + lane % 16 * 128, j, lane),
                {words[j][0], words[j][1], words[j + 1][0], words[j + 1][1]});
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = 4 * i + lane / 8;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[i].x), "=r"(values[i].y), "=r"(values[i].z), "=r"(values[i].w)
                 : "r"(mine.memory + r * 128 + ((lane ^ r) & 7) * 16)
                 : "memory");
  }
}

// Stores a warp's rows of the 64 columns from `column` on.
__device__ __forceinline__ void store_slab(const TileCall& call, const TileWalk& at, int column, const Words& words,
                                           const WarpRows& mine) {
  const int lane = mine.lane, row0 = at.row + 64 * mine.block + 16 * mine.warp + lane / 8;
  uint4 values[4];
  pass_slab(values, words, mine);
  const int lane_column = column + lane % 8 * 8;
  bf16* const y = call.y + row0 * call.y_stride + lane_column;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (lane_column < call.width && row0 + 4 * i < call.rows)
      *reinterpret_cast<uint4*>(y + 4 * i * call.y_stride) = values[i];
  __syncwarp();
}

}  // namespace lockstep::kernels::cuda
