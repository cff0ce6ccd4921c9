// Decode attention with query heads as the rows of a 16-row tile (attention_decode.cu): a span's scores, softmax and
// sums over values by the warps of a CTA. attention_decode_heads.cu has the same steps with query heads as the columns,
// for few sequences; for many they are no faster (docs/decisions/gpu-attention.md).
//
// A CTA runs this code once or twice per layer, from an instruction cache that it shares with the other kernels of a
// decode step, so loops that need not be unrolled are not.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_wide.cuh"

namespace lockstep::kernels::cuda {

// Compile-time parameters of a CTA, which has kDim columns of keys or values in shared memory at a time. kWhole:
// head_dim is kDim, and rows of q and o begin at multiples of 16 and 4 bytes. Otherwise head_dim is any up to 2 kDim.
template <int kColumns, bool kWholeHeads>
struct DecodeTraits {
  static constexpr int kDim = kColumns;
  static constexpr bool kWhole = kWholeHeads;
  static constexpr int kWarps = kBlocksPerSpan, kCtas = 3;  // that a multiprocessor holds at a time
  static constexpr int kGroups = kDim / 16 / kWarps;        // groups of 16 columns of o that a warp adds up
  static_assert(kGroups * kWarps * 16 == kDim);

  static __device__ int head_dim(const Decode& p) { return kWhole ? kDim : p.head_dim; }
};

template <class P>
struct DecodeShared {
  bf16 tiles[kBlocksPerSpan][kKeyBlock * P::kDim];  // a block's keys, then its values
  union {
    bf16 queries[kDecodeRows * P::kDim];
    uint4 p[kBlocksPerSpan][4][32];  // probabilities, as A fragments; written when all warps have their scores
  };
  float block_max[kDecodeRows][kBlocksPerSpan];
  float factor[kBlocksPerSpan][kDecodeRows];  // of what was added up before the block
  float lane_sum[kBlocksPerSpan][2][32];
  bool last[kDecodeRows];  // whether this CTA's span was the last of the sequence's to be written
};

// A row of the tile: a query head of a sequence.
struct DecodeRow {
  bool present;  // it exists and sees keys of the span
  int sequence, head, low;
  int64_t row;
};

// A span, and rows lane / 4 and lane / 4 + 8 of the tile, which the lane holds.
struct SpanTile {
  int span;
  int low, high;  // keys that at least one row sees
  int all_from;   // all rows see the keys from here on
  bool alone;     // the sequence sees no other span
  DecodeRow rows[2];

  __device__ __forceinline__ SpanTile(const DecodePart& part, int of_span, int lane)
      : span(of_span), low(part.low), high(part.high), all_from(part.low), alone(part.first_span == part.last_span) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      rows[h] = {r < part.present, part.sequence, part.head + r, part.low, part.row};
    }
  }

  __device__ bool sees(int block) const {
    const int first_key = (span * kBlocksPerSpan + block) * kKeyBlock;
    return first_key <= high && first_key + kKeyBlock > low;
  }
};

// A warp copies columns first_column .. first_column + kDim - 1 of 64 keys or values, of which `present` exist; the
// rest become zeros. Lanes 0 .. 3 hold where each 16 of them lie.
template <class P>
__device__ __forceinline__ void copy_block(bf16* tile, const bf16* lane_from, int present, int head_dim,
                                           int first_column, int lane) {
  constexpr int kDim = P::kDim, kChunks = kDim / 8, kStep = 32 / kChunks;  // kStep rows at a time, a power of 2
  const auto address = reinterpret_cast<uint64_t>(lane_from);
  const int row = lane / kChunks, chunk = lane % kChunks;
#pragma unroll 1
  for (int b = 0; b < 4; ++b) {
    const auto* const from = reinterpret_cast<const bf16*>(__shfl_sync(~0u, address, b));
    if constexpr (P::kWhole) {
#pragma unroll
      for (int i = 0; i < kKvBlock; i += kStep)
        copy_async_16(tile + (row + i) * kDim + ((chunk ^ row) ^ (i & 7)) * 8, from + lane * 8 + i * kDim,
                      i < present - row);
    } else {
      copy_kv_columns<kDim>(tile, 0, from, present, head_dim, first_column, lane, 32);
    }
    tile += kKvBlock * kDim, present -= static_cast<int>(kKvBlock);
  }
}

// The CTA copies columns first_column .. first_column + kDim - 1 of the tile's queries; what does not exist becomes
// zeros.
template <class P>
__device__ __forceinline__ void copy_queries(bf16* queries, const Decode& p, const SpanTile& tile, int first_column,
                                             int warp, int lane) {
  constexpr int kDim = P::kDim;
#pragma unroll
  for (int chunk = 4 * warp + (lane & 3); chunk < kDim / 8; chunk += 4 * P::kWarps)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const DecodeRow& row = tile.rows[h];
      const int column = first_column + 8 * chunk;
      bf16* const to = queries + tile_offset<kDim>(lane / 4 + 8 * h, chunk);
      const bf16* const from = p.q.at(row.row, row.head * P::head_dim(p) + column);
      if constexpr (P::kWhole) {
        copy_async_16(to, from, row.present);
      } else {
        for (int i = 0; i < 8; ++i) to[i] = row.present && column < p.head_dim ? from[i] : __float2bfloat16(0.0f);
      }
    }
}

// S of the tile's rows and 64 keys, or its sum over kDim further columns.
template <int kDim>
__device__ __forceinline__ void add_scores(float (&s)[8][4], const bf16* queries, const bf16* keys, int lane) {
#pragma unroll 1
  for (int column = 0; column < kDim; column += 64)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t q[4];
      load_a<kDim>(q, queries + column, 0, k, lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_b_rows<kDim>(b, keys + column, 16 * n, k, lane);
        mma_pair(s[2 * n], s[2 * n + 1], q, b);
      }
    }
}

// Sets S to -inf where a row does not see the key.
__device__ __forceinline__ void mask_span(float (&s)[8][4], const SpanTile& tile, int first_key, int lane) {
  if (first_key >= tile.all_from && first_key + kKeyBlock - 1 <= tile.high) return;
  const int own_key = first_key + 2 * (lane & 3), high = tile.high - own_key;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int low = tile.rows[h].low - own_key;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (8 * n + j < low || 8 * n + j > high) s[n][2 * h + j] = -INFINITY;
  }
}

// Called once warp w has the scores of block w (`mine`: some key of it is seen); the values may still be in flight, and
// have arrived when it returns. Shares the block's probabilities, their sums and its online softmax factor. m: the
// lane's two rows' maxima over the span.
template <class P>
__device__ __forceinline__ void share_scores(DecodeShared<P>& shared, float (&m)[2], float (&s)[8][4], bool mine,
                                             float c, int warp, int lane) {
  float own_max[2] = {block_max<0>(s), block_max<1>(s)};
  if (!mine) own_max[0] = own_max[1] = kNoKey;
  if ((lane & 3) == 0) shared.block_max[lane / 4][warp] = own_max[0], shared.block_max[lane / 4 + 8][warp] = own_max[1];
  __syncthreads();
  float own_mu[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    static_assert(kBlocksPerSpan == 4);
    const float4 blocks = *reinterpret_cast<const float4*>(shared.block_max[lane / 4 + 8 * h]);
    float before = kNoKey;
    if (warp > 0) before = fmaxf(before, blocks.x);
    if (warp > 1) before = fmaxf(before, blocks.y);
    if (warp > 2) before = fmaxf(before, blocks.z);
    const float next = fmaxf(before, own_max[h]);
    own_mu[h] = __fmul_rn(next, c);
    if ((lane & 3) == 0) shared.factor[warp][lane / 4 + 8 * h] = rescale(before, next, c);
    m[h] = fmaxf(fmaxf(fmaxf(kNoKey, blocks.x), fmaxf(blocks.y, blocks.z)), blocks.w);
  }
  if (mine) {
    shared.lane_sum[warp][0][lane] = block_exp<0>(s, own_mu[0], c);
    shared.lane_sum[warp][1][lane] = block_exp<1>(s, own_mu[1], c);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4];
      pack_a(a, s[2 * k], s[2 * k + 1]);
      shared.p[warp][k][lane] = make_uint4(a[0], a[1], a[2], a[3]);
    }
  }
  copy_wait<0>();
  __syncthreads();
}

// Adds up this warp's columns of o and stores them; shared memory holds the values of columns first_column ..
// + kDim - 1. If a sequence has one span, that is its result; otherwise each span's part goes to the scratch memory.
template <class P>
__device__ __forceinline__ void add_values(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                           const float (&m)[2], int first_column, int warp, int lane) {
  constexpr int kGroups = P::kGroups;
  float o[2 * kGroups][4] = {}, l[2] = {0, 0};
#pragma unroll 1
  for (int block = 0; block < kBlocksPerSpan; ++block) {
    if (!tile.sees(block)) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float f = shared.factor[block][lane / 4 + 8 * h];
      l[h] = __fmaf_rn(l[h], f, shared.lane_sum[block][h][lane]);
#pragma unroll
      for (int n = 0; n < 2 * kGroups; ++n)
        o[n][2 * h] = __fmul_rn(o[n][2 * h], f), o[n][2 * h + 1] = __fmul_rn(o[n][2 * h + 1], f);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 packed = shared.p[block][k][lane];
      const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        uint32_t b[4];
        load_b_columns<P::kDim>(b, shared.tiles[block], 16 * k, warp * kGroups + n, lane);
        mma_pair(o[2 * n], o[2 * n + 1], a, b);
      }
    }
  }
  const int head_dim = P::head_dim(p), own_column = first_column + 16 * warp * kGroups + 2 * (lane & 3);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    l[h] = quad_sum(l[h]);
    const DecodeRow& row = tile.rows[h];
    if (!row.present) continue;
    RowTotal total;
    total.join(m[h], l[h], p.c);
    const float inverse = total.inverse();
    const int64_t place = p.place(row.sequence, tile.span, row.head);
    float* const part = p.partial_o + place * head_dim + own_column;
    bf16* const to = p.o.at(row.row, row.head * head_dim + own_column);
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n) {
      if (!P::kWhole && own_column + 8 * n >= head_dim) continue;
      const float x = o[n][2 * h], y = o[n][2 * h + 1];
      if (tile.alone)
        store_pair(to + 8 * n, P::kWhole || p.o.by_4, finished(x, inverse), finished(y, inverse));
      else
        *reinterpret_cast<float2*>(part + 8 * n) = make_float2(x, y);
    }
    if (first_column > 0 || warp > 0 || (lane & 3) > 0) continue;
    if (tile.alone)
      store_stats(p, row.row, row.head, total.m, total.l);
    else
      p.partial_ml[place] = make_float2(m[h], l[h]);
  }
}

}  // namespace lockstep::kernels::cuda
