// How a warp adds the LoRA delta scale h B to a matmul's result. The sum over the rank, the addition in f32 and the
// rounding are those of lora_expand, so the bits are too.
//
// A warp has tiles of 8 rows x a strip of 64 columns. The tensor core forms the transpose of h B: lane 4 g + t then
// holds rows 2 t and 2 t + 1 of the 8 columns of group g, which are neighbours: 16 bytes. Step m of four computes
// columns 2 m and 2 m + 1 of every group. Where in the matrix a group's 8 columns lie is the caller's choice.
#pragma once

#include "kernels/cuda/row_io.cuh"
#include "kernels/cuda/tile_fetch.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kStripColumns = 64, kStripRows = 8;
// Fragments of one group of 16 ranks of a strip: a uint4 for every step and lane.
inline constexpr int kStripPieces = 4 * 32, kStripBytes = kStripPieces * static_cast<int>(sizeof(uint4));

// One pair, from one of its columns on.
struct DeltaColumns {
  Operand b;  // if it is empty nothing is added
  int h_begin = 0;
  float scale = 0;

  __device__ bool any() const { return b.data != nullptr; }
};

// h for all rows.
struct DeltaSource {
  const bf16* h;
  int stride;

  explicit DeltaSource(const ConstTensor& t) : h(data_of<bf16>(t)), stride(static_cast<int>(t.row_stride)) {}
};

// A lane's 8 columns of one row.
union Eight {
  uint4 vector;
  uint32_t word[4];
};

// Stores a lane's share of B for ranks 16 group .. 16 group + 15: `columns` begins with the lane's 8.
__device__ __forceinline__ void store_strip(uint4* strip, const DeltaColumns& columns, int group, int lane) {
  const int k = 16 * group + lane % 4 * 2;
  const Operand& b = columns.b;
  Eight row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int rank = k + i / 2 * 8 + i % 2;
    row[i].vector = uint4{};
    if (!columns.any() || rank >= b.rows || b.cols <= 0) continue;
    row[i].vector = b.aligned ? *reinterpret_cast<const uint4*>(b.data + rank * b.stride) : load_8(b, rank, 0);
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const auto two = [&](int first, uint32_t pick) {  // ranks `first` and first + 1 of one column
      return __byte_perm(row[first].word[m], row[first + 1].word[m], pick);
    };
    strip[32 * m + lane] = make_uint4(two(0, 0x5410), two(0, 0x7632), two(2, 0x5410), two(2, 0x7632));
  }
}

// A lane's part of h for one pair. kGroups: the pair has that many groups of 16 ranks, the last perhaps partial;
// 0: any number of ranks. Ranks beyond the pair's count as zeros.
template <int kGroups, bool kPaired>
struct LaneInput {
  LaneRows<const bf16> rows;
  int ranks;  // counted from the lane's first one
  uint32_t fetched[kGroups > 0 ? kGroups : 1][2];

  __device__ LaneInput(const DeltaSource& source, const DeltaColumns& columns, int lane)
      : rows(source.h, source.stride, columns.h_begin + lane % 4 * 2),
        ranks(static_cast<int>(columns.b.rows) - lane % 4 * 2) {}

  // Begins to load what the next sums need of this row, the lane / 4-th of its tile.
  __device__ __forceinline__ void fetch(int row) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) load(fetched[group], group, row);
  }
  __device__ __forceinline__ void load(uint32_t (&b)[2], int group, int row) const {
    const bf16* const from = rows.at(row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = 16 * group + 8 * half;
      if constexpr (kGroups > 1)
        b[half] = *reinterpret_cast<const uint32_t*>(from + rank);
      else
        b[half] = two(from, rank);
    }
  }

 private:
  __device__ __forceinline__ uint32_t two(const bf16* from, int rank) const {
    if constexpr (kPaired) return rank < ranks ? *reinterpret_cast<const uint32_t*>(from + rank) : 0;
    uint32_t word = rank < ranks ? __bfloat16_as_ushort(from[rank]) : 0;
    if (rank + 1 < ranks) word |= uint32_t{__bfloat16_as_ushort(from[rank + 1])} << 16;
    return word;
  }
};

// The sums over the rank for a lane's 8 columns of its two rows.
struct StripSums {
  float step[4][4] = {};  // of column 2 m: both rows; of column 2 m + 1: both rows

  // row: the lane / 4-th of the tile
  template <int kGroups, bool kPaired>
  __device__ __forceinline__ StripSums(const LaneInput<kGroups, kPaired>& input, const uint4* strip, int groups,
                                       int row, int lane) {
    const auto multiply = [&](const uint32_t(&h)[2], int group) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint4 b = strip[kStripPieces * group + 32 * m + lane];
        mma_16816(step[m], {b.x, b.y, b.z, b.w}, h);
      }
    };
    if constexpr (kGroups > 0) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply(input.fetched[group], group);
    } else {
      for (int group = 0; group < groups; ++group) {
        uint32_t h[2];
        input.load(h, group, row);
        multiply(h, group);
      }
    }
  }
  __device__ __forceinline__ void add(const StripSums& more) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) step[m][e] = __fadd_rn(more.step[m][e], step[m][e]);
  }
  __device__ __forceinline__ void scale_by(float scale) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) step[m][e] = __fmaf_rn(scale, step[m][e], 0.0f);
  }
  // Adds them to the lane's columns of its two rows and rounds.
  __device__ __forceinline__ void add_to(Eight& first, Eight& second) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      first.word[m] = sum_of(first.word[m], step[m][0], step[m][2]);
      second.word[m] = sum_of(second.word[m], step[m][1], step[m][3]);
    }
  }

 private:
  __device__ static __forceinline__ uint32_t sum_of(uint32_t y, float low, float high) {
    return pack_bf16(__fadd_rn(__uint_as_float(y << 16), low), __fadd_rn(__uint_as_float(y & 0xffff0000u), high));
  }
};

// Adds a pair's delta to a lane's columns of its two rows.
template <int kGroups, bool kPaired>
__device__ __forceinline__ void add_strip(Eight& first, Eight& second, const LaneInput<kGroups, kPaired>& input,
                                          const DeltaColumns& pair, const uint4* strip, int groups, int row, int lane) {
  StripSums sums(input, strip, groups, row, lane);
  if (!pair.any()) return;  // adding 0 would turn -0 into 0
  sums.scale_by(pair.scale);
  sums.add_to(first, second);
}

}  // namespace lockstep::kernels::cuda
