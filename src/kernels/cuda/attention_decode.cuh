// What the decode attention kernels (one row per sequence) share: attention_decode.cu, attention_decode_heads.cu.
//
// A CTA handles a span of keys and one kv head. Warp w computes the scores of the span's block w. Then all warps split
// the columns of o, each adding blocks in order. The last CTA of a sequence and kv head to finish merges the spans, in
// order of position whichever CTA that is; where few CTAs exchange their parts, that of the last span merges
// (attention_decode_exchange.cuh). The query heads of the group are the rows of the CTA's 16-row tile, but in
// attention_decode_heads.cu the columns of one of eight.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kDecodeRows = 16;
inline constexpr int64_t kFewCtas = 128;  // about as many as there are multiprocessors

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

struct Decode {
  HeadRows<bf16> o;
  HeadRows<const bf16> q;  // or qkv, where the kernel applies norm and RoPE itself
  float* stats;            // or nullptr
  int64_t stats_stride;
  int heads, kv_heads, head_dim, window;
  int64_t kv_offset;
  float scale, c;
  DeviceSequences sequences;
  int row_tiles, spans;  // tiles of one kv head; at most this many spans per sequence
  int early_ctas = 0;    // as many as the GPU holds at a time: they may start while earlier kernels run
  float* partial_o;      // the regions of span_scratch
  float2* partial_ml;
  unsigned* counters;

  // Where the partial result of one span and head lies.
  __device__ int64_t place(int sequence, int span, int head) const {
    return (int64_t{sequence} * spans + span) * heads + head;
  }
};
Decode decode_arguments(const Tensor& o, const Tensor& stats, const ConstTensor& q, const AttentionShape& shape,
                        const DeviceSequences& sequences, int tile_rows = kDecodeRows);

// CTAs per sequence, kv head and tile of its rows (tile_rows query heads); whether they are so few that latency
// dominates.
struct DecodeCtas {
  int64_t of_spans = 0, items = 0;
  bool few = false;
};
DecodeCtas decode_ctas(const AttentionShape& shape, const DeviceSequences& sequences, int tile_rows = kDecodeRows);

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

// A sequence and the query heads of one of its kv heads.
struct DecodePart {
  int sequence, first_span, last_span;
  int kv_head, head, present;  // query heads head .. head + present - 1
  int64_t row;
  int low, high;  // visible keys

  // `item` counts kv heads and, within each, tiles of its query heads.
  __device__ __forceinline__ DecodePart(const Decode& p, const DeviceSequence& from, int sequence_index, int item,
                                        int tile_rows = kDecodeRows)
      : sequence(sequence_index), kv_head(item / p.row_tiles), row(from.row_begin), high(from.first_position) {
    const int group = p.heads / p.kv_heads, tile = item % p.row_tiles;
    low = p.window ? max(0, high - p.window + 1) : 0;
    first_span = low / static_cast<int>(kKeySpan), last_span = high / static_cast<int>(kKeySpan);
    head = kv_head * group + tile * tile_rows;
    present = min(tile_rows, group - tile * tile_rows);
  }
  __device__ __forceinline__ DecodePart(const Decode& p, int sequence_index, int item)
      : DecodePart(p, p.sequences.sequences[sequence_index], sequence_index, item) {}

  // Where the keys at positions below `end` lie.
  __device__ __forceinline__ KvPlace place(const Decode& p, int block_begin, int end) const {
    const int head_elements = static_cast<int>(kKvBlock) * p.head_dim;
    return {.blocks = p.sequences.blocks + block_begin,
            .offset = p.kv_offset + int64_t{kv_head} * head_elements,
            .value_offset = p.kv_heads * head_elements,
            .head_dim = p.head_dim,
            .end = end};
  }
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

__device__ __forceinline__ void store_stats(const Decode& p, int64_t row, int head, float m, float l) {
  if (!p.stats) return;
  float* stats = p.stats + row * p.stats_stride + 2 * head;
  stats[0] = __fmul_rn(m, p.scale), stats[1] = l;
}

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

// Run by one CTA, once all spans are written: merges those of each head in order.
inline __device__ void merge_spans(const Decode& p, const DecodePart& part) {
  const int quads = p.head_dim / 4;
  for (int i = threadIdx.x; i < part.present * quads; i += blockDim.x) {
    const int head = part.head + i / quads, column = i % quads * 4;
    RowTotal total;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int span = part.first_span; span <= part.last_span; ++span) {
      const int64_t place = p.place(part.sequence, span, head);
      const float2 ml = __ldcg(p.partial_ml + place);
      const float4 x = __ldcg(reinterpret_cast<const float4*>(p.partial_o + place * p.head_dim + column));
      total.join(ml.x, ml.y, p.c);
      o = make_float4(total.joined(o.x, x.x), total.joined(o.y, x.y), total.joined(o.z, x.z), total.joined(o.w, x.w));
    }
    const float inverse = total.inverse();
    bf16* const to = p.o.at(part.row, head * p.head_dim + column);
    store_pair(to, p.o.by_4, finished(o.x, inverse), finished(o.y, inverse));
    store_pair(to + 2, p.o.by_4, finished(o.z, inverse), finished(o.w, inverse));
    if (column == 0) store_stats(p, part.row, head, total.m, total.l);
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

template <class P>
__device__ __forceinline__ void finish_span(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                            float (&s)[8][4], bool mine, int warp, int lane) {
  const Rescaling rescaling = share_scores<P>(shared, p, s, mine, warp, lane);
  add_values<P>(shared, p, tile, rescaling, 0, warp, lane);
}

// Called by thread 0 when all threads have written a span. Returns whether it is the last of the part's spans.
__device__ __forceinline__ bool arrive(const Decode& p, const DecodePart& part) {
  __threadfence();  // orders the writes of all threads before the barrier
  // The counter wraps to zero at the last arrival, ready for the next call.
  const auto others = static_cast<unsigned>(part.last_span - part.first_span);
  const bool last = atomicInc(p.counters + int64_t{part.sequence} * p.heads + part.head, others) == others;
  __threadfence();
  return last;
}

}  // namespace lockstep::kernels::cuda
