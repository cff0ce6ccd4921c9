// The LoRA delta scale h B, added by the op that reads the matmul's result (kernels/lora.h: LoraDelta). The sum over
// the rank, the addition in f32 and the rounding are those of lora_expand, so the bits are too.
//
// A warp has tiles of 16 rows x a strip of 32 columns. The mapping from B's columns to the tensor core's is arbitrary:
// tile j of four takes columns 2j and 2j + 1 of every 8, so that a lane's results are 8 neighbouring columns, from 8
// (lane % 4) on, of rows lane / 4 and lane / 4 + 8. They are read and written as 16 bytes. B is stored in shared memory
// in the order in which lanes use it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_io.cuh"
#include "kernels/cuda/tile.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kStripColumns = 32, kStripRows = 16;
// Fragments of one group of 16 ranks of a strip.
inline constexpr int kStripBytes = 32 * 8 * sizeof(uint32_t);

// One pair, from one of its columns on.
struct DeltaColumns {
  Operand b;  // if it is empty nothing is added
  int h_begin = 0;
  float scale = 0;

  __device__ bool any() const { return b.data != nullptr; }
};

// ---- which rows a block handles, and what is added to them ----

// The pair's columns from the `at`-th on.
__device__ inline DeltaColumns columns_of(const LoraSitePair& pair, int h_begin, int at) {
  const auto* const b = static_cast<const bf16*>(pair.b) + at;
  const bool aligned = reinterpret_cast<uintptr_t>(b) % 16 == 0 && pair.out % 8 == 0;
  return {{b, pair.out, pair.rank, pair.out - at, aligned}, h_begin, pair.scale};
}

// The pair that contributes to this column of y, and which of its columns that is.
__device__ inline DeltaColumns columns_of(const LoraSite& site, int column) {
  int h_begin = 0;
  for (int p = 0; p < site.count; ++p) {
    const LoraSitePair& pair = site.pair[p];
    const int at = column - pair.out_begin;
    if (at >= 0 && at < pair.out) return columns_of(pair, h_begin, at);
    h_begin += pair.rank;
  }
  return {};
}

// Rows [begin, end), except those marked in `without`.
struct DeltaRows {
  int begin = 0, end = 0;
  uint32_t without = 0;  // a bit for each of the first 16 rows
};

// h for all rows.
struct DeltaSource {
  const bf16* h;
  int stride;

  explicit DeltaSource(const ConstTensor& t) : h(data_of<bf16>(t)), stride(static_cast<int>(t.row_stride)) {}
};

// One adapter: blockIdx.y counts blocks of rows. Two columns of h from an even one on are 4 aligned bytes; ranks are
// even.
struct OneDelta {
  static constexpr bool kPaired = true;
  DeltaSource source;
  LoraSite site;
  int rows, block_rows;

  __device__ DeltaColumns columns(int column) const { return columns_of(site, column); }
  // For the case that every pair contributes to all columns.
  __device__ DeltaColumns columns_of_pair(int p, int column) const {
    int h_begin = 0;
    for (int before = 0; before < p; ++before) h_begin += site.pair[before].rank;
    return columns_of(site.pair[p], h_begin, column);
  }
  __device__ DeltaRows my_rows() const {
    const int begin = static_cast<int>(blockIdx.y) * block_rows;
    return {begin, min(begin + block_rows, rows)};
  }
};

// Many adapters: blockIdx.y is a tile or, beyond the tiles, 16 rows of which those without an adapter are handled.
struct ManyDeltas {
  static constexpr bool kPaired = false;
  DeltaSource source;
  LoraTiles tiles;  // `sites` points at those of the layer in question
  int rows;

  __device__ int num_tiles() const { return static_cast<int>(tiles.num_tiles); }
  __device__ DeltaColumns columns(int column) const {
    if (static_cast<int>(blockIdx.y) >= num_tiles()) return {};
    const LoraTile& tile = tiles.tiles[blockIdx.y];
    return tile.rows == 0 ? DeltaColumns() : columns_of(tiles.sites[tile.adapter * tiles.num_sites], column);
  }
  __device__ DeltaRows my_rows() const {
    if (static_cast<int>(blockIdx.y) < num_tiles()) {
      const LoraTile& tile = tiles.tiles[blockIdx.y];
      return {tile.row_begin, tile.row_begin + tile.rows};
    }
    DeltaRows mine;
    mine.begin = (static_cast<int>(blockIdx.y) - num_tiles()) * kStripRows;
    mine.end = min(mine.begin + kStripRows, rows);
    for (int i = static_cast<int>(threadIdx.x) % 32; i < num_tiles(); i += 32) {
      const LoraTile& tile = tiles.tiles[i];
      const int first = max(tile.row_begin - mine.begin, 0);
      const int last = min(tile.row_begin + tile.rows - mine.begin, kStripRows);
      if (first < last) mine.without |= (1u << last) - (1u << first);
    }
    mine.without = __reduce_or_sync(~0u, mine.without);
    if (mine.without == (1u << (mine.end - mine.begin)) - 1) mine.end = mine.begin;
    return mine;
  }
};

// A lane's 8 columns of one row, as two halves of 4.
union Eight {
  uint4 vector;
  uint32_t word[2][2];
};

// The address of a lane's columns in a matrix.
template <class T>
struct LaneRows {
  T* first;
  int stride_bytes;

  __device__ LaneRows(T* data, int stride, int column)
      : first(data + column), stride_bytes(stride * static_cast<int>(sizeof(T))) {}
  __device__ __forceinline__ T* at(int row) const {
    using Bytes = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Bytes*>(first) + int64_t{row} * stride_bytes);
  }
};

// A lane's asynchronous copies of what it reads of a tile, kPieces times 16 bytes, one tile ahead.
// Call begin(copy) once; then, for every tile, advance(more, copy), which starts the next tile's copies, and piece(i).
// copy(fetch) calls fetch(i, from) for every piece.
template <int kPieces>
class TileFetch {
 public:
  static constexpr int kWarpBytes = 2 * kPieces * 32 * static_cast<int>(sizeof(uint4));

  __device__ TileFetch(uint4* warp_memory, int lane) : mine_(warp_memory + lane) {}

  template <class Copy>
  __device__ __forceinline__ void begin(const Copy& copy) {
    copy([&](int i, const bf16* from) { copy_async_16(mine_ + 32 * i, from); });
    copy_commit();
  }
  template <class Copy>
  __device__ __forceinline__ void advance(bool more, const Copy& copy) {
    uint4* const other = mine_ + 32 * kPieces * (1 - stage_);
    if (more) copy([&](int i, const bf16* from) { copy_async_16(other + 32 * i, from); });
    copy_commit();
    copy_wait<1>();
    __syncwarp();  // also keeps the compiler from reordering
    now_ = mine_ + 32 * kPieces * stage_;
    stage_ = 1 - stage_;
  }
  __device__ __forceinline__ uint4 piece(int i) const { return now_[32 * i]; }

 private:
  uint4 *mine_, *now_ = nullptr;
  int stage_ = 0;
};

// ---- loading B ----

// Stores a lane's share of ranks 16 group .. 16 group + 15 for the 32 columns that `columns` begins with.
__device__ __forceinline__ void store_strip(uint4* strip, const DeltaColumns& columns, int group, int lane) {
  const int k = 16 * group + lane % 4 * 2, column = lane / 8 * 8;
  const Operand& b = columns.b;
  Eight row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int rank = k + i / 2 * 8 + i % 2;
    row[i].vector = uint4{};
    if (!columns.any() || rank >= b.rows || column >= b.cols) continue;
    row[i].vector =
        b.aligned ? *reinterpret_cast<const uint4*>(b.data + rank * b.stride + column) : load_8(b, rank, column);
  }
  const uint32_t pick = lane / 4 % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto two = [&](int first, int j) {  // ranks `first` and first + 1
      return __byte_perm(row[first].word[half][j], row[first + 1].word[half][j], pick);
    };
    strip[32 * half + lane] = make_uint4(two(0, 0), two(2, 0), two(0, 1), two(2, 1));
  }
}

// ---- adding h B ----

// A lane's part of h for one pair. kGroups: the pair has that many groups of 16 ranks, the last perhaps partial;
// 0: any number of ranks. Ranks beyond the pair's count as zeros.
template <int kGroups, bool kPaired>
struct LaneInput {
  LaneRows<const bf16> rows;
  int ranks;  // counted from the lane's first one

  __device__ LaneInput(const DeltaSource& source, const DeltaColumns& columns, int lane)
      : rows(source.h, source.stride, columns.h_begin + lane % 4 * 2),
        ranks(static_cast<int>(columns.b.rows) - lane % 4 * 2) {}

  // The A fragment of one group, for the lane's two rows.
  __device__ __forceinline__ void load(uint32_t (&a)[4], int group, const int (&row)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bf16* const from = rows.at(row[r]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int rank = 16 * group + 8 * half;
        if constexpr (kGroups > 1)
          a[2 * half + r] = *reinterpret_cast<const uint32_t*>(from + rank);
        else
          a[2 * half + r] = two(from, rank);
      }
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

// The delta of half a strip: 4 of each lane's 8 columns, from 4 half on, of rows lane / 4 and lane / 4
// + 8.
struct HalfStrip {
  float acc[2][4] = {};

  __device__ __forceinline__ void chain(const uint32_t (&h)[4], const uint4* strip, int half, int lane) {
    const uint4 b = strip[32 * half + lane];
    mma_16816(acc[0], h, {b.x, b.y});
    mma_16816(acc[1], h, {b.z, b.w});
  }
  // Adds to the lane's 4 columns of row r (of two) and rounds; does nothing without a pair.
  __device__ __forceinline__ void add_to(uint32_t (&y)[2], const DeltaColumns& columns, int r) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t sum = pack_bf16(add(__uint_as_float(y[j] << 16), columns.scale, acc[j][2 * r]),
                                     add(__uint_as_float(y[j] & 0xffff0000u), columns.scale, acc[j][2 * r + 1]));
      y[j] = columns.any() ? sum : y[j];
    }
  }

 private:
  __device__ static __forceinline__ float add(float y, float scale, float delta) {
    return __fadd_rn(y, __fmaf_rn(scale, delta, 0.0f));
  }
};

// Adds the delta to a lane's two rows, 8 columns for each of the warp's strips, all of one pair. With few groups strip
// by strip; with any number of groups, all strips for each group, in the order in which h is read.
template <int kStrips, int kGroups, bool kPaired>
__device__ __forceinline__ void add_to_strips(Eight (&x)[2][kStrips], const LaneInput<kGroups, kPaired>& input,
                                              const DeltaColumns& pair, const uint4* strips, int groups,
                                              const int (&row)[2], int lane) {
  constexpr int kHalves = 2 * kStrips;
  HalfStrip sum[kHalves];
  const auto add = [&](int i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[i].add_to(x[r][i / 2].word[i % 2], pair, r);
  };
  if constexpr (kGroups > 0) {
    uint32_t h[kGroups][4];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) input.load(h[group], group, row);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        sum[i].chain(h[group], strips + (i / 2 * kGroups + group) * 64, i % 2, lane);
      add(i);
    }
  } else {
    for (int group = 0; group < groups; ++group) {
      uint32_t h[4];
      input.load(h, group, row);
#pragma unroll
      for (int i = 0; i < kHalves; ++i) sum[i].chain(h, strips + (i / 2 * groups + group) * 64, i % 2, lane);
    }
#pragma unroll
    for (int i = 0; i < kHalves; ++i) add(i);
  }
}

// The same when all pairs contribute to all columns: each pair's sum over the rank is formed separately, they are added
// in order, and the total is added to x.
template <int kStrips, int kGroups, int kPairs>
__device__ __forceinline__ void add_pairs_to_strips(Eight (&x)[2][kStrips],
                                                    const LaneInput<kGroups, true>* const (&input)[kPairs],
                                                    const uint4* strips, const int (&row)[2], int lane) {
  uint32_t h[kPairs][kGroups][4];
#pragma unroll
  for (int p = 0; p < kPairs; ++p)
#pragma unroll
    for (int group = 0; group < kGroups; ++group) input[p]->load(h[p][group], group, row);
#pragma unroll
  for (int i = 0; i < 2 * kStrips; ++i) {
    float total[2][4] = {};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      HalfStrip sum;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        sum.chain(h[p][group], strips + ((i / 2 * kPairs + p) * kGroups + group) * 64, i % 2, lane);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) total[j][e] = __fadd_rn(sum.acc[j][e], total[j][e]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t& word = x[r][i / 2].word[i % 2][j];
        word = pack_bf16(__fadd_rn(__uint_as_float(word << 16), total[j][2 * r]),
                         __fadd_rn(__uint_as_float(word & 0xffff0000u), total[j][2 * r + 1]));
      }
  }
}

// ---- launches ----

// How a kernel's warps are arranged: `across` side by side, each with one or several strips of columns, and `row_warps`
// below each other, each with tiles of 16 rows.
struct DeltaShape {
  int groups = 1;        // groups of 16 ranks of the largest pair
  int known_groups = 0;  // kGroups of LaneInput, the same for every pair
  int across = 1, row_warps = 1;
  int block_rows = 16;
  unsigned columns = 0;  // number of blocks side by side
  size_t shared_bytes = 0;

  unsigned threads() const { return static_cast<unsigned>(32 * across * row_warps); }
};

// Lets `kernel` have as much as any shape takes; delta_shape stays below shared_limit().
template <auto kKernel>
void allow_delta_shared() {
  constexpr size_t kMaxBytes = size_t{200} << 10;
  allow_shared<kKernel>(std::min(kMaxBytes, device_shared_limit()));
}
inline constexpr int64_t kFewDeltaRows = 128;

// Few rows: many small blocks. Many rows: blocks that keep some columns and iterate over rows, as long as there are
// enough blocks for every multiprocessor. A tile of an adapter is one warp's rows.   units: how many warps the columns
// take, at `strips` strips each; warp_bytes: shared memory for a warp's copies
inline DeltaShape delta_shape(const LoraDelta& delta, int64_t rows, int64_t units, int strips, size_t warp_bytes,
                              int multiprocessors) {
  DeltaShape shape;
  int64_t least = kMaxGpuRank, most = delta.tiles.max_rank;
  for (const LoraPair& pair : delta.pairs) least = std::min(least, pair.rank()), most = std::max(most, pair.rank());
  shape.groups = static_cast<int>((most + 15) / 16);
  if (shape.groups == 1 || (delta.tiles.num_tiles == 0 && least == most && (most == 32 || most == 64)))
    shape.known_groups = shape.groups;
  if (delta.tiles.num_tiles > 0) {
    shape.across = 4;
  } else if (rows <= kFewDeltaRows) {
    shape.row_warps = static_cast<int>(std::min<int64_t>((rows + kStripRows - 1) / kStripRows, 4));
    shape.block_rows = kStripRows * shape.row_warps;
  } else {
    shape.across = 4, shape.row_warps = 2;
    const int64_t wanted = int64_t{16} * multiprocessors, blocks = (units + 3) / 4;
    shape.block_rows = static_cast<int>(std::clamp<int64_t>((rows * blocks / wanted + 31) / 32 * 32, 32, 256));
  }
  // limits B's memory so that two blocks fit on a multiprocessor
  constexpr size_t kMaxB = size_t{32} << 10;
  const auto b_bytes = [&] { return size_t{kStripBytes} * shape.across * strips * shape.groups; };
  while (shape.across > 1 && b_bytes() > kMaxB) {
    shape.across /= 2;
    if (rows > kFewDeltaRows && delta.tiles.num_tiles == 0) shape.row_warps *= 2;
  }
  const auto all_bytes = [&] { return b_bytes() + warp_bytes * static_cast<size_t>(shape.across * shape.row_warps); };
  while (shape.row_warps > 1 && all_bytes() > shared_limit()) shape.row_warps /= 2;
  if (shape.row_warps == 8) shape.block_rows = (shape.block_rows + 127) / 128 * 128;
  shape.shared_bytes = all_bytes();
  shape.columns = static_cast<unsigned>((units + shape.across - 1) / shape.across);
  return shape;
}

// start(kGroups as a constant)
template <class Source, class Start>
void with_groups(const DeltaShape& shape, const Start& start) {
  if (shape.known_groups == 1) return start(std::integral_constant<int, 1>());
  if constexpr (std::is_same_v<Source, OneDelta>) {
    if (shape.known_groups == 2) return start(std::integral_constant<int, 2>());
    if (shape.known_groups == 4) return start(std::integral_constant<int, 4>());
  }
  start(std::integral_constant<int, 0>());
}

// Whether OneDelta supports these operands.
inline bool reads_well(const LoraDelta& delta) {
  if (delta.tiles.num_tiles > 0) return true;
  if (delta.pairs.size() > static_cast<size_t>(kMaxSitePairs)) return false;
  for (const LoraPair& pair : delta.pairs)
    if (pair.rank() % 2 != 0) return false;
  return reinterpret_cast<uintptr_t>(delta.h.data) % 4 == 0 && delta.h.row_stride % 2 == 0;
}

inline LoraSite site_of(std::span<const LoraPair> pairs) {
  LoraSite site;
  for (const LoraPair& pair : pairs)
    site.pair[site.count++] = {.a = pair.a.data,
                               .b = pair.b.data,
                               .rank = static_cast<int32_t>(pair.rank()),
                               .in = static_cast<int32_t>(pair.in()),
                               .out = static_cast<int32_t>(pair.b[1]),
                               .out_begin = static_cast<int32_t>(pair.out_begin),
                               .scale = pair.scale};
  return site;
}

// launch(source, grid)
template <class Launch>
void with_one_delta(const LoraDelta& delta, const DeltaShape& shape, int64_t rows, const Launch& launch) {
  const int64_t row_blocks = (rows + shape.block_rows - 1) / shape.block_rows;
  launch(OneDelta{DeltaSource(delta.h), site_of(delta.pairs), static_cast<int>(rows), shape.block_rows},
         dim3(shape.columns, static_cast<unsigned>(row_blocks)));
}
// The same for all rows, including those of no tile.
template <class Launch>
void with_delta(const LoraDelta& delta, const DeltaShape& shape, int64_t rows, const Launch& launch) {
  if (delta.tiles.num_tiles == 0) return with_one_delta(delta, shape, rows, launch);
  LoraTiles tiles = delta.tiles;
  tiles.sites += delta.site;
  const int64_t row_blocks = tiles.num_tiles + (rows + kStripRows - 1) / kStripRows;
  launch(ManyDeltas{DeltaSource(delta.h), tiles, static_cast<int>(rows)},
         dim3(shape.columns, static_cast<unsigned>(row_blocks)));
}

}  // namespace lockstep::kernels::cuda
