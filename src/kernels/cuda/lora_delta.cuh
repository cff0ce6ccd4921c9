// The LoRA delta scale h B, added by the op that reads the matmul's result (kernels/lora.h: LoraDelta): which rows and
// pairs a block has, and how a kernel is launched. The arithmetic is in lora_strips.cuh.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/lora_strips.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

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

// The rows of a block, a tile of kStripRows after another from `begin` on, `step` rows apart; those from `end` on and
// those marked in `without` are not the block's.
struct DeltaRows {
  int begin = 0, end = 0, step = 0;
  uint32_t without = 0;  // a bit for each of the first 16 rows; none: 0

  __device__ bool has(int row) const { return row < end && (without == 0 || (without >> (row - begin) & 1) == 0); }
};

// One adapter: the blocks side by side in y take turns. Two columns of h from an even one on are 4 aligned bytes; ranks
// are even.
struct OneDelta {
  static constexpr bool kPaired = true;
  DeltaSource source;
  LoraSite site;
  int rows, block_rows;  // of the whole launch; at a time

  __device__ DeltaColumns columns(int column) const { return columns_of(site, column); }
  // For the case that every pair contributes to all columns.
  __device__ DeltaColumns columns_of_pair(int p, int column) const {
    int h_begin = 0;
    for (int before = 0; before < p; ++before) h_begin += site.pair[before].rank;
    return columns_of(site.pair[p], h_begin, column);
  }
  __device__ DeltaRows my_rows() const {
    return {static_cast<int>(blockIdx.y) * block_rows, rows, static_cast<int>(gridDim.y) * block_rows};
  }
};

// Many adapters: blockIdx.y is a tile or, beyond the tiles, 16 rows of which those without an adapter are handled.
struct ManyDeltas {
  static constexpr bool kPaired = false;
  DeltaSource source;
  LoraTiles tiles;       // `sites` points at those of the layer in question
  int rows, block_rows;  // of the whole launch; at a time

  __device__ int num_tiles() const { return static_cast<int>(tiles.num_tiles); }
  __device__ DeltaColumns columns(int column) const {
    if (static_cast<int>(blockIdx.y) >= num_tiles()) return {};
    const LoraTile& tile = tiles.tiles[blockIdx.y];
    return tile.rows == 0 ? DeltaColumns() : columns_of(tiles.sites[tile.adapter * tiles.num_sites], column);
  }
  __device__ DeltaRows my_rows() const {
    if (static_cast<int>(blockIdx.y) < num_tiles()) {
      const LoraTile& tile = tiles.tiles[blockIdx.y];
      return {tile.row_begin, tile.row_begin + tile.rows, block_rows};
    }
    DeltaRows mine;
    mine.begin = (static_cast<int>(blockIdx.y) - num_tiles()) * kLoraTileRows;
    mine.end = min(mine.begin + kLoraTileRows, rows);
    mine.step = block_rows;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < num_tiles(); i += 32) {
      const LoraTile& tile = tiles.tiles[i];
      const int first = max(tile.row_begin - mine.begin, 0);
      const int last = min(tile.row_begin + tile.rows - mine.begin, kLoraTileRows);
      if (first < last) mine.without |= (1u << last) - (1u << first);
    }
    mine.without = __reduce_or_sync(~0u, mine.without);
    if (mine.without == (1u << (mine.end - mine.begin)) - 1) mine.end = mine.begin;
    return mine;
  }
};

// ---- launches ----

// How a kernel's warps are arranged: `across` side by side, each with one or several strips of columns, and `row_warps`
// below each other, each with tiles of kStripRows.
struct DeltaShape {
  int groups = 1;        // groups of 16 ranks of the largest pair
  int known_groups = 0;  // kGroups of LaneInput, the same for every pair
  int across = 1, row_warps = 1;
  unsigned columns = 0, row_blocks = 0;  // number of blocks side by side and below each other, for one adapter
  size_t shared_bytes = 0;

  unsigned threads() const { return static_cast<unsigned>(32 * across * row_warps); }
  int block_rows() const { return kStripRows * row_warps; }
};

// Lets `kernel` have as much as any shape takes; delta_shape stays below shared_limit().
template <auto kKernel>
void allow_delta_shared() {
  constexpr size_t kMaxBytes = size_t{200} << 10;
  allow_shared<kKernel>(std::min(kMaxBytes, device_shared_limit()));
}
inline constexpr int64_t kFewDeltaRows = 128;
inline constexpr int64_t kDeltaBlocks = 8;  // per multiprocessor, for many rows
// That a multiprocessor runs at a time: the launch bounds of SwiGLU and lora_expand.
inline constexpr int64_t kDeltaBlocksAtATime = 3;

// Few rows: many small blocks. Many rows: blocks that keep some columns and iterate over rows, as many as fill the
// multiprocessors a few times. A tile of an adapter is two warps' rows.   units: how many warps the columns take, at
// `strips` strips each; warp_bytes: shared memory for a warp's copies
inline DeltaShape delta_shape(const LoraDelta& delta, int64_t rows, int64_t units, int strips, size_t warp_bytes,
                              int multiprocessors) {
  DeltaShape shape;
  int64_t least = kMaxGpuRank, most = delta.tiles.max_rank;
  for (const LoraPair& pair : delta.pairs) least = std::min(least, pair.rank()), most = std::max(most, pair.rank());
  shape.groups = static_cast<int>((most + 15) / 16);
  if (shape.groups == 1 || (delta.tiles.num_tiles == 0 && least == most && (most == 32 || most == 64)))
    shape.known_groups = shape.groups;
  const bool few = delta.tiles.num_tiles == 0 && rows <= kFewDeltaRows;
  if (few)
    shape.row_warps = static_cast<int>(std::min<int64_t>((rows + kStripRows - 1) / kStripRows, 4));
  else
    shape.across = 4, shape.row_warps = kLoraTileRows / kStripRows;
  // limits B's memory so that several blocks fit on a multiprocessor
  constexpr size_t kMaxB = size_t{32} << 10;
  const auto b_bytes = [&] { return size_t{kStripBytes} * shape.across * strips * shape.groups; };
  while (shape.across > 1 && b_bytes() > kMaxB) {
    shape.across /= 2;
    if (!few && delta.tiles.num_tiles == 0) shape.row_warps *= 2;
  }
  const auto all_bytes = [&] { return b_bytes() + warp_bytes * static_cast<size_t>(shape.across * shape.row_warps); };
  while (shape.row_warps > 1 && all_bytes() > shared_limit()) shape.row_warps /= 2;
  shape.shared_bytes = all_bytes();
  shape.columns = static_cast<unsigned>((units + shape.across - 1) / shape.across);
  const int64_t wanted = kDeltaBlocks * multiprocessors / shape.columns;
  shape.row_blocks = static_cast<unsigned>(std::clamp<int64_t>((rows + shape.block_rows() - 1) / shape.block_rows(), 1,
                                                               few ? rows : std::max<int64_t>(wanted, 1)));
  // Rather half of the blocks with twice the rows each than a second wave.
  const unsigned half = (shape.row_blocks + 1) / 2;
  const auto one_wave = [&](unsigned row_blocks) {
    return int64_t{shape.columns} * row_blocks <= kDeltaBlocksAtATime * multiprocessors;
  };
  if (!few && !one_wave(shape.row_blocks) && one_wave(half)) shape.row_blocks = half;
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
  launch(OneDelta{DeltaSource(delta.h), site_of(delta.pairs), static_cast<int>(rows), shape.block_rows()},
         dim3(shape.columns, shape.row_blocks));
}
// The same for all rows, including those of no tile.
template <class Launch>
void with_delta(const LoraDelta& delta, const DeltaShape& shape, int64_t rows, const Launch& launch) {
  if (delta.tiles.num_tiles == 0) return with_one_delta(delta, shape, rows, launch);
  LoraTiles tiles = delta.tiles;
  tiles.sites += delta.site;
  const int64_t row_blocks = tiles.num_tiles + (rows + kLoraTileRows - 1) / kLoraTileRows;
  launch(ManyDeltas{DeltaSource(delta.h), tiles, static_cast<int>(rows), shape.block_rows()},
         dim3(shape.columns, static_cast<unsigned>(row_blocks)));
}

}  // namespace lockstep::kernels::cuda
