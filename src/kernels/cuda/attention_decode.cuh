// What the decode attention kernels (one row per sequence) share: attention_decode.cu, attention_decode_heads.cu.
//
// A CTA handles a span of keys and one kv head. Warp w computes the scores of the span's block w. Then all warps split
// the columns of o, each adding blocks in order. The last CTA of a sequence and kv head to finish merges the spans, in
// order of position whichever CTA that is; where few CTAs exchange their parts, that of the last span merges
// (attention_decode_exchange.cuh).
#pragma once

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kDecodeRows = 16;
inline constexpr int64_t kFewCtas = 128;  // about as many as there are multiprocessors

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
  float* partial_o;      // the regions of span_scratch, or only this one: Library::attention_parts
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

__device__ __forceinline__ void store_stats(const Decode& p, int64_t row, int head, float m, float l) {
  if (!p.stats) return;
  float* stats = p.stats + row * p.stats_stride + 2 * head;
  stats[0] = __fmul_rn(m, p.scale), stats[1] = l;
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
