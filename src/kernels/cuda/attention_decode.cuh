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
  int group, tile_rows;  // query heads of a kv head, and of them the most that a CTA handles together
  int64_t kv_offset;
  float scale, c;
  DeviceSequences sequences;
  int row_tiles, spans;  // tiles of one kv head; at most this many spans per sequence
  int shared_rows = 0;   // of the grid's z, whose CTAs have shared spans; the others have a sequence each
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
                        const DeviceSequences& sequences, int tile_rows);

// CTAs per sequence, kv head and tile of its rows (tile_rows query heads); whether they are so few that latency
// dominates.
struct DecodeCtas {
  int64_t of_spans = 0, items = 0;
  bool few = false;
};
DecodeCtas decode_ctas(const AttentionShape& shape, const DeviceSequences& sequences, int tile_rows);

// A sequence and the query heads of one of its kv heads.
struct DecodePart {
  int sequence, first_span, last_span;
  int kv_head, head, present;  // query heads head .. head + present - 1
  int64_t row;
  int low, high;  // visible keys

  // `item` counts kv heads and, within each, tiles of its query heads.
  __device__ __forceinline__ DecodePart(const Decode& p, const DeviceSequence& from, int sequence_index, int item)
      : kv_head(item / p.row_tiles) {
    const int first = (item - kv_head * p.row_tiles) * p.tile_rows;
    head = kv_head * p.group + first;
    present = min(p.tile_rows, p.group - first);
    set_sequence(p, from, sequence_index);
  }
  // The same heads of another sequence.
  __device__ __forceinline__ DecodePart for_sequence(const Decode& p, int sequence_index) const {
    DecodePart other = *this;
    other.set_sequence(p, p.sequences.sequences[sequence_index], sequence_index);
    return other;
  }
  __device__ __forceinline__ void set_sequence(const Decode& p, const DeviceSequence& from, int sequence_index) {
    sequence = sequence_index, row = from.row_begin, high = from.first_position;
    low = p.window ? max(0, high - p.window + 1) : 0;
    first_span = low / static_cast<int>(kKeySpan), last_span = high / static_cast<int>(kKeySpan);
  }

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

// Run by one CTA, once all spans are written: merges those of each head in order. kWholeDim: head_dim, where o has rows
// at multiples of 4 bytes; 0: any.
template <int kWholeDim>
__device__ void merge_spans(const Decode& p, const DecodePart& part) {
  constexpr int kTogether = 4;  // spans whose loads are in flight together
  const int head_dim = kWholeDim > 0 ? kWholeDim : p.head_dim, quads = head_dim / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < part.present * quads; i += blockDim.x) {
    const int head = part.head + i / quads, column = i % quads * 4;
    RowTotal total;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = part.first_span; first <= part.last_span; first += kTogether) {
      float2 ml[kTogether];
      float4 x[kTogether];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const int64_t place = p.place(part.sequence, min(first + s, part.last_span), head);
        ml[s] = __ldcg(p.partial_ml + place);
        x[s] = __ldcg(reinterpret_cast<const float4*>(p.partial_o + place * head_dim + column));
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        if (first + s > part.last_span) break;
        total.join(ml[s].x, ml[s].y, p.c);
        o = make_float4(total.joined(o.x, x[s].x), total.joined(o.y, x[s].y), total.joined(o.z, x[s].z),
                        total.joined(o.w, x[s].w));
      }
    }
    const float inverse = total.inverse();
    bf16* const to = p.o.at(part.row, head * head_dim + column);
    store_pair(to, kWholeDim > 0 || p.o.by_4, finished(o.x, inverse), finished(o.y, inverse));
    store_pair(to + 2, kWholeDim > 0 || p.o.by_4, finished(o.z, inverse), finished(o.w, inverse));
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
