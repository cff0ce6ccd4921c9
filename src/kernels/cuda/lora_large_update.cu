// y += scale h B. A warp keeps 64 columns of B in registers and walks down the rows: y goes from memory to registers
// and back in 16-byte pieces, the next rows' while these are computed. Two permutations make that possible, and neither
// changes a bit: a product's 8 columns n of tile j are the columns 8 (n / 2) + 2 j + n % 2 of 32, so that a thread's
// values of four tiles are 8 neighbours; inside a group of 16 ranks, a thread takes 4 neighbours.
#include "kernels/cuda/lora_large.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kColumns = 64, kMostGroups = 4, kMostParts = 6, kThreads = 128;
// Blocks a multiprocessor holds: more groups take more registers.
constexpr int blocks_held(int groups) {
  return groups == 1 ? 4 : groups < 4 ? 3 : 2;
}

// 16 ranks of one product; `ends` where the product's sum is complete.
struct Group {
  Operand x, b;
  int first_rank = 0;
  bool ends = false;
  float scale = 1;
};
// Columns of y that get the same groups.
struct Part {
  int64_t y_begin = 0, y_cols = 0;
  int first_tile = 0;
  Group group[kMostGroups];
};
struct Update {
  Part part[kMostParts];
  int num_parts = 0, tiles = 0, rows_per_warp = 0;
  LoraRows rows;
};

template <bool kByRank>
__device__ __forceinline__ uint32_t element(const Operand& b, int64_t rank, int64_t column) {
  const int64_t row = kByRank ? rank : column, col = kByRank ? column : rank;
  if (row >= b.rows || col >= b.cols) return 0;
  return reinterpret_cast<const uint16_t*>(b.data)[row * b.stride + col];
}

// What a thread needs of 16 rows: y's 8 columns of rows g and g + 8, in both halves of the 64; h's 4 ranks of each
// group.
template <int kGroups>
struct RowTile {
  uint4 y[2][2];        // [row half][column half]
  uint2 h[kGroups][2];  // [][row half]

  __device__ __forceinline__ void load(const Part& part, const LoraRows& rows, int64_t row0, int64_t col0, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = row0 + lane / 4 + 8 * r;
      const bool inside = row < rows.count;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int64_t column = col0 + 32 * c + lane % 4 * 8;
        y[r][c] = inside && column < part.y_cols
                      ? *reinterpret_cast<const uint4*>(rows.y + row * rows.stride + part.y_begin + column)
                      : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const Operand& x = part.group[g].x;
        const int64_t rank = part.group[g].first_rank + lane % 4 * 4;
        h[g][r] = inside && rank < x.cols ? *reinterpret_cast<const uint2*>(x.data + row * x.stride + rank)
                                          : make_uint2(0, 0);
      }
    }
  }
};

__device__ __forceinline__ uint32_t plus(uint32_t pair, float low, float high) {
  return pack_bf16(__fadd_rn(__uint_as_float(pair << 16), low), __fadd_rn(__uint_as_float(pair & 0xffff0000u), high));
}

template <int kGroups>
__device__ __forceinline__ void update_tile(const RowTile<kGroups>& tile, const uint32_t (&b)[kGroups][8][2],
                                            const Part& part, const LoraRows& rows, int64_t row0, int64_t col0,
                                            int lane) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float sum[4][4] = {}, acc[4][4] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        mma_16816(acc[j], {tile.h[g][0].x, tile.h[g][1].x, tile.h[g][0].y, tile.h[g][1].y}, b[g][4 * c + j]);
      if (!part.group[g].ends) continue;
      const float scale = part.group[g].scale;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[j][e] = __fadd_rn(sum[j][e], __fmul_rn(scale, acc[j][e])), acc[j][e] = 0;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = row0 + lane / 4 + 8 * r, column = col0 + 32 * c + lane % 4 * 8;
      const uint4 y = tile.y[r][c];
      const uint4 changed =
          make_uint4(plus(y.x, sum[0][2 * r], sum[0][2 * r + 1]), plus(y.y, sum[1][2 * r], sum[1][2 * r + 1]),
                     plus(y.z, sum[2][2 * r], sum[2][2 * r + 1]), plus(y.w, sum[3][2 * r], sum[3][2 * r + 1]));
      if (row < rows.count && column < part.y_cols)
        *reinterpret_cast<uint4*>(rows.y + row * rows.stride + part.y_begin + column) = changed;
    }
  }
}

template <int kGroups, bool kByRank>
__global__ void __launch_bounds__(kThreads, blocks_held(kGroups)) update_rows(const __grid_constant__ Update update) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  // Neighbouring warps have neighbouring columns.
  const int tile = unit % update.tiles;
  const int64_t begin = int64_t{unit / update.tiles} * update.rows_per_warp;
  int64_t end = begin + update.rows_per_warp;
  end = end < update.rows.count ? end : update.rows.count;
  if (begin >= end) return;
  int p = 0;
  while (p + 1 < update.num_parts && tile >= update.part[p + 1].first_tile) ++p;
  const Part& part = update.part[p];
  const int64_t col0 = int64_t{tile - part.first_tile} * kColumns;

  RowTile<kGroups> tiles[2];
  tiles[0].load(part, update.rows, begin, col0, lane);
  uint32_t b[kGroups][8][2];
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = lane / 4;
        const int64_t column = col0 + j / 4 * 32 + n / 2 * 8 + j % 4 * 2 + n % 2;
        const int64_t rank = part.group[g].first_rank + lane % 4 * 4 + 2 * half;
        b[g][j][half] =
            element<kByRank>(part.group[g].b, rank, column) | element<kByRank>(part.group[g].b, rank + 1, column) << 16;
      }
  for (int64_t row = begin; row < end; row += 32) {
    tiles[1].load(part, update.rows, row + 16 < end ? row + 16 : update.rows.count, col0, lane);
    update_tile<kGroups>(tiles[0], b, part, update.rows, row, col0, lane);
    tiles[0].load(part, update.rows, row + 32 < end ? row + 32 : update.rows.count, col0, lane);
    if (row + 16 < end) update_tile<kGroups>(tiles[1], b, part, update.rows, row + 16, col0, lane);
  }
}

// The groups of one product; false if there are too many.
bool add_groups(Part& part, int& count, const PairProduct& product) {
  const int groups = static_cast<int>((product.x.cols + 15) / 16);
  if (count + groups > kMostGroups) return false;
  for (int g = 0; g < groups; ++g)
    part.group[count++] = {
        .x = product.x, .b = product.b, .first_rank = 16 * g, .ends = g + 1 == groups, .scale = product.scale};
  return true;
}

bool aligned(const PairProduct& product, const LoraRows& rows) {
  const bf16* const y = rows.y + product.y_begin;
  return aligned_16(y, rows.stride, product.y_cols) && reinterpret_cast<uintptr_t>(product.x.data) % 8 == 0 &&
         product.x.stride % 4 == 0 && product.x.cols % 4 == 0;
}

template <bool kByRank>
void launch(const Update& update, int groups, unsigned blocks, cudaStream_t stream) {
  constexpr void (*kKernels[])(Update) = {update_rows<1, kByRank>, update_rows<2, kByRank>, update_rows<3, kByRank>,
                                          update_rows<4, kByRank>};
  kKernels[groups - 1]<<<blocks, kThreads, 0, stream>>>(update);
}

}  // namespace

bool update_large(const PairProducts& products, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream) {
  Update update;
  update.rows = rows;
  int most_groups = 0;
  for (int p = 0; p < products.count; ++p) {
    const PairProduct& product = products.pair[p];
    if (!aligned(product, rows)) return false;
    if (p == 0 || !together) {
      if (update.num_parts == kMostParts) return false;
      update.part[update.num_parts++] = {
          .y_begin = product.y_begin, .y_cols = product.y_cols, .first_tile = update.tiles};
      update.tiles += static_cast<int>((product.y_cols + kColumns - 1) / kColumns);
    }
    int count = together ? most_groups : 0;
    if (!add_groups(update.part[update.num_parts - 1], count, product)) return false;
    most_groups = std::max(most_groups, count);
  }
  // Parts with fewer groups have groups without ranks, which add nothing.
  const int warps = multiprocessors * blocks_held(most_groups) * kThreads / 32,
            chunks = std::max(1, warps / update.tiles);
  update.rows_per_warp = static_cast<int>(((rows.count + 15) / 16 + chunks - 1) / chunks) * 16;
  const int64_t units = (rows.count + update.rows_per_warp - 1) / update.rows_per_warp * update.tiles;
  const auto blocks = static_cast<unsigned>((units + kThreads / 32 - 1) / (kThreads / 32));
  (together ? launch<false> : launch<true>)(update, most_groups, blocks, stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
