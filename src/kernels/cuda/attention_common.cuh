// What the attention kernels share: the definition of a row's bits, tiles in shared memory, pieces of softmax.
//
// The definition. A row (position i, one head) sees keys j in [max(0, i - window + 1), i]. Keys are processed in spans
// of kKeySpan positions and, within a span, in blocks of kKeyBlock; both are aligned to multiples of their length.
//   S = q.k          f32, one mma chain over head_dim in groups of 16; keys that are not seen: -inf
//   m' = max(m, max of the block's S);  mu = rn(m' c),  c = scale log2(e);  p = exp2(fma(S, c, -mu))
//   f = exp2(mu_old - mu);  l = fma(l, f, sum p);  o = f o, then the mma chain over the block's keys of bf16(p) v
// l is kept apart for the four lanes of a quad: lane t holds keys 8n + 2t and 8n + 2t + 1, n = 0..7; it adds the first
// of the pairs in order of n, the second likewise, then the two sums; a butterfly over the quad (1, 2 apart) ends it.
// A span begins with m = kNoKey, l = 0, o = 0. At its end it is merged into the row's total (M, L, O):
//   M' = max(M, m);  a = exp2(mu(M) - mu(M')), b = exp2(mu(m) - mu(M'));  L = fma(L, a, l b);  O = fma(O, a, o b)
// The row's output is bf16(O (1 / L) + 0); its stats are (rn(scale M), L), as on the CPU.
//
// A block or span without a visible key changes nothing (mu stays, f = a = 1, p = b = 0, all exactly), except that a
// zero may lose its sign, which the "+ 0" at the end takes away from every zero. So a kernel may skip such blocks or
// compute them.
#pragma once

#include <cmath>
#include <string>

#include "kernels/attention_checks.h"
#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kKeyBlock = 64;
inline constexpr int kBlocksPerSpan = kKeySpan / kKeyBlock;
inline constexpr int kTileRows = kQueryTile;
static_assert(kTileRows == kKeyBlock && kKeySpan % kKeyBlock == 0 && kKeyBlock == 4 * kKvBlock);

// The maximum before the first key. It is finite, so that a difference of maxima is never inf - inf.
inline constexpr float kNoKey = -1e30f;

// A matrix of bf16 rows, each of heads * head_dim columns.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride;
  bool by_16;  // rows and heads begin at multiples of 16 bytes
  bool by_4;

  __device__ T* at(int64_t row, int column) const { return data + row * stride + column; }
};
template <class T, class View>
HeadRows<T> head_rows(const View& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  return {static_cast<T*>(tensor.data), tensor.row_stride, address % 16 == 0 && tensor.row_stride % 8 == 0,
          address % 4 == 0 && tensor.row_stride % 2 == 0};
}

__device__ __forceinline__ uint32_t load_pair(const bf16* from, bool by_4) {
  if (by_4) return *reinterpret_cast<const uint32_t*>(from);
  const auto* half = reinterpret_cast<const uint16_t*>(from);
  return half[0] | static_cast<uint32_t>(half[1]) << 16;
}
__device__ __forceinline__ void store_pair(bf16* to, bool by_4, float low, float high) {
  const uint32_t pair = pack_bf16(low, high);
  if (by_4) {
    *reinterpret_cast<uint32_t*>(to) = pair;
  } else {
    auto* half = reinterpret_cast<uint16_t*>(to);
    half[0] = static_cast<uint16_t>(pair), half[1] = static_cast<uint16_t>(pair >> 16);
  }
}

// Tiles: rows of kDim bf16 in shared memory.
// head_dim is padded with zeros to kDim. The 16-byte chunks of a row are permuted (swizzled) so that the 8 rows that
// ldmatrix reads at one column lie in eight different groups of four banks.

template <int kDim>
__device__ __forceinline__ int tile_offset(int row, int chunk) {
  const int moved = kDim >= 64 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
  return row * kDim + moved * 8;
}

// Copies rows 0 .. kRows - 1 of a tile from `from` (row stride in elements); rows from `rows` on become zeros.
template <int kDim, int kRows = kTileRows>
__device__ void copy_rows(bf16* tile, const HeadRows<const bf16>& from, int64_t row, int column, int rows,
                          int head_dim) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kChunks; i += blockDim.x) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool valid = r < rows && chunk * 8 < head_dim;
    bf16* to = tile + tile_offset<kDim>(r, chunk);
    const bf16* source = valid ? from.at(row + r, column + chunk * 8) : from.data;
    if (from.by_16) {
      copy_async_16(to, source, valid);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = valid ? source[j] : __float2bfloat16(0.0f);
    }
  }
}

// Copies 16 keys (or values) of one head, 16 * head_dim contiguous elements at `from`, into rows row .. row + 15 of a
// tile, by the lanes first, first + step ...; from key `keys` on zeros are written and nothing is read.
template <int kDim>
__device__ __forceinline__ void copy_kv_block(bf16* tile, int row, const bf16* from, int keys, int head_dim, int first,
                                              int step) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int i = first; i < kKvBlock * kChunks; i += step) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool valid = r < keys && chunk * 8 < head_dim;
    copy_async_16(tile + tile_offset<kDim>(row + r, chunk), from + (valid ? r * head_dim + chunk * 8 : 0), valid);
  }
}

// Where the keys of one sequence lie.
struct KvPlace {
  void* const* blocks;
  int64_t offset;    // of this layer and head in a block, in elements
  int value_offset;  // from keys to values of the head
  int head_dim;
  int end;  // keys at positions from here on do not exist

  // The memory of the 16 positions from `position` on; if there are none, valid memory whose contents do not matter.
  __device__ const bf16* at(int position) const {
    const int last = (end - 1) / static_cast<int>(kKvBlock), wanted = position / static_cast<int>(kKvBlock);
    return static_cast<const bf16*>(blocks[min(wanted, last)]) + offset;
  }
};

// Loads an A fragment: rows row .. row + 15, columns 16 group .. + 15, as matrices (rows 0-7, columns 0-7),
// (8-15, 0-7), (0-7, 8-15), (8-15, 8-15), the order of a's registers.
template <int kDim>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const bf16* tile, int row, int group, int lane) {
  ldmatrix_x4(a, tile + tile_offset<kDim>(row + (lane & 15), 2 * group + (lane >> 4)));
}
// Loads B fragments of two matmuls with the transposed tile: n = rows row .. row + 7 in b[0..1], row + 8 .. in b[2..3];
// k = columns 16 group .. + 15.
template <int kDim>
__device__ __forceinline__ void load_b_rows(uint32_t (&b)[4], const bf16* tile, int row, int group, int lane) {
  ldmatrix_x4(b, tile + tile_offset<kDim>(row + (lane & 7) + ((lane >> 4) << 3), 2 * group + ((lane >> 3) & 1)));
}
// Loads B fragments of two matmuls with the tile: k = rows row .. row + 15; n = columns 16 group .. + 7 in b[0..1],
// 16 group + 8 .. in b[2..3].
template <int kDim>
__device__ __forceinline__ void load_b_columns(uint32_t (&b)[4], const bf16* tile, int row, int group, int lane) {
  ldmatrix_x4_trans(b, tile + tile_offset<kDim>(row + (lane & 15), 2 * group + (lane >> 4)));
}
__device__ __forceinline__ void mma_pair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[4]) {
  const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
  mma_16816(d0, a, low);
  mma_16816(d1, a, high);
}
// Converts two neighbouring 8-column accumulators to the A fragment of 16 columns.
__device__ __forceinline__ void pack_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]), a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]), a[3] = pack_bf16(right[2], right[3]);
}

// Computes S for 16 rows and a block of 64 keys.
template <int kDim>
__device__ __forceinline__ void score_block(float (&s)[8][4], const uint32_t (&q)[kDim / 16][4], const bf16* keys,
                                            int lane) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      load_b_rows<kDim>(b, keys, 16 * n, k, lane);
      mma_pair(s[2 * n], s[2 * n + 1], q[k], b);
    }
}
// sum += bf16(weights) * tile, over the tile's 64 rows in order.
template <int kDim>
__device__ __forceinline__ void add_weighted_rows(float (&sum)[kDim / 8][4], const float (&weights)[8][4],
                                                  const bf16* tile, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4], b[4];
    pack_a(a, weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      load_b_columns<kDim>(b, tile, 16 * k, n, lane);
      mma_pair(sum[2 * n], sum[2 * n + 1], a, b);
    }
  }
}

// Softmax. A lane holds rows g = lane / 4 (half 0: elements 0, 1) and g + 8 (half 1: elements 2, 3) of a 16-row tile.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Sets S to -inf where the key is not in [low, high], for the lane's part of the two rows.
__device__ __forceinline__ void mask_block(float (&s)[8][4], int first_key, const int (&low)[2], const int (&high)[2],
                                           int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + 8 * n + 2 * (lane & 3) + (e & 1);
      if (key < low[e >> 1] || key > high[e >> 1]) s[n][e] = -INFINITY;
    }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
}

template <int kHalf>
__device__ __forceinline__ float block_max(const float (&s)[8][4]) {
  float m = kNoKey;
#pragma unroll
  for (int n = 0; n < 8; ++n) m = fmaxf(m, fmaxf(s[n][2 * kHalf], s[n][2 * kHalf + 1]));
  return quad_max(m);
}
// Replaces S by p and returns the lane's sum.
template <int kHalf>
__device__ __forceinline__ float block_exp(float (&s)[8][4], float mu, float c) {
  float first = 0, second = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    s[n][2 * kHalf] = exp2_fast(__fmaf_rn(s[n][2 * kHalf], c, -mu));
    s[n][2 * kHalf + 1] = exp2_fast(__fmaf_rn(s[n][2 * kHalf + 1], c, -mu));
    first = __fadd_rn(first, s[n][2 * kHalf]);
    second = __fadd_rn(second, s[n][2 * kHalf + 1]);
  }
  return __fadd_rn(first, second);
}
// exp2(mu(from) - mu(to))
__device__ __forceinline__ float rescale(float from, float to, float c) {
  return exp2_fast(__fsub_rn(__fmul_rn(from, c), __fmul_rn(to, c)));
}

// The running total of a row, and how a span is merged into it.
struct RowTotal {
  float m = kNoKey, l = 0;
  float keep = 0, add = 0;  // factors of the total's o and of the span's o in the latest merge

  __device__ __forceinline__ void join(float span_m, float span_l, float c) {
    const float next = fmaxf(m, span_m);
    keep = rescale(m, next, c), add = rescale(span_m, next, c);
    l = __fmaf_rn(l, keep, __fmul_rn(span_l, add));
    m = next;
  }
  __device__ __forceinline__ float joined(float total_o, float span_o) const {
    return __fmaf_rn(total_o, keep, __fmul_rn(span_o, add));
  }
  __device__ __forceinline__ float inverse() const { return __fdiv_rn(1.0f, l); }
};
__device__ __forceinline__ float finished(float o, float inverse) {
  return __fadd_rn(__fmul_rn(o, inverse), 0.0f);
}

inline float log2_scale(const AttentionShape& shape) {
  return static_cast<float>(static_cast<double>(shape.scale) * 1.4426950408889634);
}

// Whether head_dim takes the kernels of attention_wide.cuh. Throws ShapeError if no kernel takes it.
inline bool is_wide(int64_t head_dim) {
  if (head_dim % 16 != 0 || head_dim > kMaxGpuHeadDim)
    throw ShapeError({.what = "head_dim is not one the GPU kernels take",
                      .where = "attention",
                      .got = std::to_string(head_dim),
                      .wanted = "a multiple of 16 up to " + std::to_string(kMaxGpuHeadDim)});
  return head_dim > 128;
}

// Calls launch.template operator()<kDim>(), where kDim is head_dim, which is not wide, padded to 32, 64 or 128.
template <class Launch>
void for_head_dim(int64_t head_dim, const Launch& launch) {
  if (head_dim <= 32)
    launch.template operator()<32>();
  else if (head_dim <= 64)
    launch.template operator()<64>();
  else
    launch.template operator()<128>();
}

// attention_decode.cu: every sequence has one row.
void attention_decode(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                      const DeviceSequences& sequences, Stream& stream);

}  // namespace lockstep::kernels::cuda
