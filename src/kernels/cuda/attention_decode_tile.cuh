// Decode attention with query heads as the rows of a 16-row tile (attention_decode.cu): a span's scores, softmax and
// sums over values by the warps of a CTA. attention_decode_heads.cu has the same steps with query heads as the columns,
// which are faster for few sequences and were slower for many (docs/decisions/gpu-attention.md).
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode.cuh"

namespace lockstep::kernels::cuda {

// Compile-time parameters of a CTA, which has kDim columns of keys or values in shared memory at a time. kAhead:
// separate warps load the values before the keys have been used. kHalves: 2 if a head has up to 2 kDim columns.
template <int kColumns, bool kValuesAhead, int kColumnHalves = 1>
struct DecodeTraits {
  static constexpr int kDim = kColumns, kHalves = kColumnHalves;
  static constexpr bool kAhead = kValuesAhead;
  static constexpr int kWarps = kAhead ? 2 * kBlocksPerSpan : kBlocksPerSpan;
  static constexpr int kCtas = kAhead ? 1 : 3;                     // that a multiprocessor holds at a time
  static constexpr int kGroups = std::max(1, kDim / 16 / kWarps);  // groups of 16 columns of o that a warp adds up
};

template <class P>
struct DecodeShared {
  bf16 keys[kBlocksPerSpan][kKeyBlock * P::kDim];
  bf16 values[P::kAhead ? kBlocksPerSpan : 1][P::kAhead ? kKeyBlock * P::kDim : 8];
  uint4 p[kBlocksPerSpan][4][32];  // A fragments
  float block_max[kBlocksPerSpan][kDecodeRows];
  float lane_sum[kBlocksPerSpan][2][32];
  bool last[kDecodeRows];  // whether this CTA's span was the last of the sequence's to be written

  __device__ bf16* values_of(int block) { return P::kAhead ? values[block] : keys[block]; }
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

// The columns of o that one warp adds up.
template <class P>
struct DecodeColumns {
  static constexpr int kGroups = P::kGroups;
  float o[2 * kGroups][4] = {};
  int first_group;

  __device__ bool any() const { return first_group * 16 < P::kDim; }

  __device__ __forceinline__ void add(DecodeShared<P>& shared, int block, const float (&f)[2], int lane) {
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = __fmul_rn(o[n][e], f[e >> 1]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 packed = shared.p[block][k][lane];
      const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        uint32_t b[4];
        load_b_columns<P::kDim>(b, shared.values_of(block), 16 * k, first_group + n, lane);
        mma_pair(o[2 * n], o[2 * n + 1], a, b);
      }
    }
  }
};

// If a sequence has one span, that is its result; otherwise each span's part goes to the scratch memory. `columns` are
// counted from first_column of the head.
template <class P>
__device__ __forceinline__ void store_span(const Decode& p, const SpanTile& tile, const DecodeColumns<P>& columns,
                                           const float (&m)[2], const float (&l)[2], int first_column, int warp,
                                           int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const DecodeRow& row = tile.rows[h];
    if (!row.present) continue;
    const int64_t place = p.place(row.sequence, tile.span, row.head);
    RowTotal total;
    total.join(m[h], l[h], p.c);
    const float inverse = total.inverse();
#pragma unroll
    for (int n = 0; n < 2 * P::kGroups; ++n) {
      const int column = first_column + 16 * columns.first_group + 8 * n + 2 * (lane & 3);
      if (column >= p.head_dim) continue;
      const float x = columns.o[n][2 * h], y = columns.o[n][2 * h + 1];
      if (tile.alone)
        store_pair(p.o.at(row.row, row.head * p.head_dim + column), p.o.by_4, finished(x, inverse),
                   finished(y, inverse));
      else
        *reinterpret_cast<float2*>(p.partial_o + place * p.head_dim + column) = make_float2(x, y);
    }
    if (first_column == 0 && warp == 0 && (lane & 3) == 0) {
      if (tile.alone)
        store_stats(p, row.row, row.head, total.m, total.l);
      else
        p.partial_ml[place] = make_float2(m[h], l[h]);
    }
  }
}

// From the blocks' maxima: the online softmax factors of a lane's two rows, and their final maximum.
struct Rescaling {
  float f[kBlocksPerSpan][2], m[2] = {kNoKey, kNoKey}, own_mu[2] = {0, 0};

  __device__ __forceinline__ Rescaling(const float (&block_max)[kBlocksPerSpan][kDecodeRows], float c, int warp,
                                       int lane) {
#pragma unroll
    for (int block = 0; block < kBlocksPerSpan; ++block)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(m[h], block_max[block][lane / 4 + 8 * h]);
        f[block][h] = rescale(m[h], next, c);
        m[h] = next;
        if (block == warp) own_mu[h] = __fmul_rn(next, c);
      }
  }
};

template <class P>
__device__ __forceinline__ void share_probabilities(DecodeShared<P>& shared, float (&s)[8][4],
                                                    const Rescaling& rescaling, float c, int warp, int lane) {
  shared.lane_sum[warp][0][lane] = block_exp<0>(s, rescaling.own_mu[0], c);
  shared.lane_sum[warp][1][lane] = block_exp<1>(s, rescaling.own_mu[1], c);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4];
    pack_a(a, s[2 * k], s[2 * k + 1]);
    shared.p[warp][k][lane] = make_uint4(a[0], a[1], a[2], a[3]);
  }
}

__device__ __forceinline__ void mask_span(float (&s)[8][4], const SpanTile& tile, int first_key, int lane) {
  if (first_key >= tile.all_from && first_key + kKeyBlock - 1 <= tile.high) return;
  const int low[2] = {tile.rows[0].low, tile.rows[1].low}, high[2] = {tile.high, tile.high};
  mask_block(s, first_key, low, high, lane);
}

// Called once warp w < kBlocksPerSpan has the scores of block w (`mine`: some key of it is seen); the values may still
// be in flight, and have arrived when it returns.
template <class P>
__device__ __forceinline__ Rescaling share_scores(DecodeShared<P>& shared, const Decode& p, float (&s)[8][4], bool mine,
                                                  int warp, int lane) {
  const int own = warp % kBlocksPerSpan;
  const bool scores = warp < kBlocksPerSpan;
  if (scores) {
    const float own_max[2] = {mine ? block_max<0>(s) : kNoKey, mine ? block_max<1>(s) : kNoKey};
    if ((lane & 3) == 0) shared.block_max[own][lane / 4] = own_max[0], shared.block_max[own][lane / 4 + 8] = own_max[1];
  }
  __syncthreads();
  const Rescaling rescaling(shared.block_max, p.c, own, lane);
  if (scores && mine) share_probabilities<P>(shared, s, rescaling, p.c, own, lane);
  copy_wait<0>();
  __syncthreads();
  return rescaling;
}

// Adds up this warp's columns of o and stores them; shared memory holds the values of columns first_column ..
// + kDim - 1.
template <class P>
__device__ __forceinline__ void add_values(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                           const Rescaling& rescaling, int first_column, int warp, int lane) {
  DecodeColumns<P> columns;
  columns.first_group = warp * P::kGroups;
  if (!columns.any()) return;
  float l[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < kBlocksPerSpan; ++block) {
    if (!tile.sees(block)) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) l[h] = __fmaf_rn(l[h], rescaling.f[block][h], shared.lane_sum[block][h][lane]);
    columns.add(shared, block, rescaling.f[block], lane);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) l[h] = quad_sum(l[h]);
  store_span<P>(p, tile, columns, rescaling.m, l, first_column, warp, lane);
}

}  // namespace lockstep::kernels::cuda
