// Attention of one row per sequence (attention_common.cuh has the rule).
//
// A CTA takes a span (or every nth) of one sequence and kv head; the query heads of the group are the rows of its
// 16-row tile. Warp w makes the scores of the span's block w; then all warps share the columns of o, each adding the
// blocks in order. The last CTA of a sequence and kv head to finish joins the spans, in order whoever that is.
//
// With many CTAs values arrive where the keys of their block were, so that three CTAs fit on a multiprocessor and some
// load while another computes. With few, latency counts: four more warps ask for the values at once.
#include <algorithm>

#include "kernels/cuda/attention_common.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kRows = 16;
constexpr int64_t kFillingCtas = 2048, kLeastSpanCtas = 8;
constexpr int kBlock = static_cast<int>(kKvBlock);
constexpr int64_t kFewCtas = 128;  // as many as find a multiprocessor each

// How a CTA is made: kAhead asks for values before the keys have been used.
template <int kHeadDim, bool kValuesAhead>
struct Plan {
  static constexpr int kDim = kHeadDim;
  static constexpr bool kAhead = kValuesAhead;
  static constexpr int kWarps = kAhead ? 2 * kBlocksPerSpan : kBlocksPerSpan;
  static constexpr int kGroups = std::max(1, kDim / 16 / kWarps);  // of 16 columns of o, that a warp adds up
};

struct Decode {
  HeadRows<bf16> o;
  HeadRows<const bf16> q;
  float* stats;  // or nullptr
  int64_t stats_stride;
  int heads, kv_heads, head_dim, window;
  int64_t kv_offset;
  float scale, c;
  DeviceSequences sequences;
  int row_tiles, spans;  // of one kv head; at most, of a sequence
  float* partial_o;      // the parts of span_scratch
  float2* partial_ml;
  unsigned* counters;
};

template <class P>
struct Shared {
  bf16 keys[kBlocksPerSpan][kKeyBlock * P::kDim];
  bf16 values[P::kAhead ? kBlocksPerSpan : 1][P::kAhead ? kKeyBlock * P::kDim : 8];
  uint4 p[kBlocksPerSpan][4][32];  // A fragments
  float block_max[kBlocksPerSpan][kRows];
  float lane_sum[kBlocksPerSpan][2][32];
  bool last;

  __device__ bf16* values_of(int block) { return P::kAhead ? values[block] : keys[block]; }
};

// This CTA's part of the work.
struct Part {
  int sequence, span, first_span, last_span;
  int head, present;  // query heads head .. head + present - 1
  int64_t row;
  int low, high;  // visible keys

  __device__ bool sees(int block) const {
    const int first_key = (span * kBlocksPerSpan + block) * kKeyBlock;
    return first_key <= high && first_key + kKeyBlock > low;
  }
};

// 16 keys or values that all exist, by a warp: every address is a constant away from one of a few.
template <int kDim>
__device__ __forceinline__ void copy_whole_kv_block(bf16* tile, const bf16* from, int lane) {
  constexpr int kChunks = kDim / 8, kStep = 32 / kChunks;  // rows at a time, a power of 2
  const int row = lane / kChunks, chunk = lane % kChunks;
#pragma unroll
  for (int i = 0; i < kKvBlock / kStep; ++i)
    copy_async_16(tile + (row + i * kStep) * kDim + ((chunk ^ row) ^ (i * kStep & 7)) * 8,
                  from + lane * 8 + i * kStep * kDim);
}

template <int kDim>
__device__ __forceinline__ void copy_block(bf16* tile, const bf16* const (&from)[4], int64_t offset, int first_key,
                                           int end, int head_dim, int lane) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int present = end - (first_key + 16 * b);
    if (kDim >= 64 && head_dim == kDim && present >= kKvBlock)
      copy_whole_kv_block<kDim>(tile + 16 * b * kDim, from[b] + offset, lane);
    else
      copy_kv_block<kDim>(tile, 16 * b, from[b] + offset, present, head_dim, lane, 32);
  }
}

template <int kDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kDim / 16][4], const Decode& p, const Part& part, int lane) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 4 + (i & 1) * 8, column = 16 * k + (i >> 1) * 8 + 2 * (lane & 3);
      const bool valid = r < part.present && 16 * k < p.head_dim;
      q[k][i] = valid ? load_pair(p.q.at(part.row, (part.head + r) * p.head_dim + column), p.q.by_4) : 0;
    }
}

// The columns of o that a warp adds up.
template <class P>
struct Columns {
  static constexpr int kGroups = P::kGroups;
  float o[2 * kGroups][4] = {};
  int first_group;

  __device__ bool any() const { return first_group * 16 < P::kDim; }

  __device__ __forceinline__ void add(Shared<P>& shared, int block, const float (&f)[2], int lane) {
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

// The only span of a sequence is its result; one of several goes to the scratch.
template <class P>
__device__ __forceinline__ void store_span(const Decode& p, const Part& part, const Columns<P>& columns,
                                           const float (&m)[2], const float (&l)[2], int warp, int lane) {
  const bool alone = part.first_span == part.last_span;
  const int64_t place = (int64_t{part.sequence} * p.spans + part.span) * p.heads + part.head;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= part.present) continue;
    RowTotal total;
    total.join(m[h], l[h], p.c);
    const float inverse = total.inverse();
#pragma unroll
    for (int n = 0; n < 2 * P::kGroups; ++n) {
      const int column = 16 * columns.first_group + 8 * n + 2 * (lane & 3);
      if (column >= p.head_dim) continue;
      const float x = columns.o[n][2 * h], y = columns.o[n][2 * h + 1];
      if (alone)
        store_pair(p.o.at(part.row, (part.head + r) * p.head_dim + column), p.o.by_4, finished(x, inverse),
                   finished(y, inverse));
      else
        *reinterpret_cast<float2*>(p.partial_o + (place + r) * p.head_dim + column) = make_float2(x, y);
    }
    if (warp == 0 && (lane & 3) == 0) {
      if (alone)
        store_stats(p, part.row, part.head + r, total.m, total.l);
      else
        p.partial_ml[place + r] = make_float2(m[h], l[h]);
    }
  }
}

// By the last CTA: the spans of each head, in order.
__device__ void join_spans(const Decode& p, const Part& part) {
  const int quads = p.head_dim / 4;
  for (int i = threadIdx.x; i < part.present * quads; i += blockDim.x) {
    const int head = part.head + i / quads, column = i % quads * 4;
    RowTotal total;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int span = part.first_span; span <= part.last_span; ++span) {
      const int64_t place = (int64_t{part.sequence} * p.spans + span) * p.heads + head;
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

// S of a warp's own block. Values follow the keys unless other warps ask for them.
template <class P>
__device__ __forceinline__ void score_own_block(Shared<P>& shared, float (&s)[8][4], const bf16* const (&from)[4],
                                                const Decode& p, const Part& part, const KvPlace& place, int first_key,
                                                int warp, int lane) {
  constexpr int kDim = P::kDim;
  copy_block<kDim>(shared.keys[warp], from, 0, first_key, place.end, p.head_dim, lane);
  copy_commit();
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, p, part, lane);
  copy_wait<0>();
  __syncwarp();
  score_block<kDim>(s, q, shared.keys[warp], lane);
  if constexpr (!P::kAhead) {
    __syncwarp();
    copy_block<kDim>(shared.values_of(warp), from, place.value_offset, first_key, place.end, p.head_dim, lane);
    copy_commit();
  }
  if (first_key < part.low || first_key + kKeyBlock - 1 > part.high) {
    const int low[2] = {part.low, part.low}, high[2] = {part.high, part.high};
    mask_block(s, first_key, low, high, lane);
  }
}

// What the blocks' maxima make of a lane's two rows: the factors of the online softmax and its last maximum.
struct Rescaling {
  float f[kBlocksPerSpan][2], m[2] = {kNoKey, kNoKey}, own_mu[2] = {0, 0};

  __device__ __forceinline__ Rescaling(const float (&block_max)[kBlocksPerSpan][kRows], float c, int warp, int lane) {
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
__device__ __forceinline__ void share_probabilities(Shared<P>& shared, float (&s)[8][4], const Rescaling& rescaling,
                                                    float c, int warp, int lane) {
  shared.lane_sum[warp][0][lane] = block_exp<0>(s, rescaling.own_mu[0], c);
  shared.lane_sum[warp][1][lane] = block_exp<1>(s, rescaling.own_mu[1], c);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4];
    pack_a(a, s[2 * k], s[2 * k + 1]);
    shared.p[warp][k][lane] = make_uint4(a[0], a[1], a[2], a[3]);
  }
}

template <class P>
__device__ __forceinline__ void compute_span(Shared<P>& shared, const Decode& p, const Part& part, const KvPlace& place,
                                             int warp, int lane) {
  const int own = warp % kBlocksPerSpan, first_key = (part.span * kBlocksPerSpan + own) * kKeyBlock;
  const bool scores = warp < kBlocksPerSpan, mine = part.sees(own);
  float s[8][4] = {};
  if (mine) {
    const bf16* from[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) from[b] = place.at(first_key + 16 * b);
    if (scores) {
      score_own_block<P>(shared, s, from, p, part, place, first_key, own, lane);
    } else {
      copy_block<P::kDim>(shared.values_of(own), from, place.value_offset, first_key, place.end, p.head_dim, lane);
      copy_commit();
    }
  }
  if (scores) {
    const float own_max[2] = {mine ? block_max<0>(s) : kNoKey, mine ? block_max<1>(s) : kNoKey};
    if ((lane & 3) == 0) shared.block_max[own][lane / 4] = own_max[0], shared.block_max[own][lane / 4 + 8] = own_max[1];
  }
  __syncthreads();
  const Rescaling rescaling(shared.block_max, p.c, own, lane);
  if (scores && mine) share_probabilities<P>(shared, s, rescaling, p.c, own, lane);
  copy_wait<0>();
  __syncthreads();

  Columns<P> columns;
  columns.first_group = warp * P::kGroups;
  if (!columns.any()) return;
  float l[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < kBlocksPerSpan; ++block) {
    if (!part.sees(block)) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) l[h] = __fmaf_rn(l[h], rescaling.f[block][h], shared.lane_sum[block][h][lane]);
    columns.add(shared, block, rescaling.f[block], lane);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) l[h] = quad_sum(l[h]);
  store_span<P>(p, part, columns, rescaling.m, l, warp, lane);
}

// Whether this CTA's span is the last of the sequence's to be written.
__device__ bool arrived_last(const Decode& p, const Part& part, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // of what all threads wrote before the barrier
    // Wraps to zero at the last arrival, ready for the next call.
    const auto others = static_cast<unsigned>(part.last_span - part.first_span);
    last = atomicInc(p.counters + int64_t{part.sequence} * p.heads + part.head, others) == others;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Keys and values of a span on their way to the L2 cache.
__device__ __forceinline__ void prefetch_span(const Part& part, const KvPlace& place, int span, int head_elements) {
  constexpr int kLine = 128 / sizeof(bf16);
  const int lines = head_elements / kLine, first = max(span * static_cast<int>(kKeySpan), part.low / kBlock * kBlock);
  const int keys = min(part.high + 1, (span + 1) * static_cast<int>(kKeySpan)) - first;
  const int all = (keys + kBlock - 1) / kBlock * lines;
  for (int i = threadIdx.x; i < all; i += blockDim.x) {
    const bf16* const keys_of_block = place.at(first + i / lines * kBlock) + i % lines * kLine;
    asm volatile("prefetch.global.L2 [%0];\nprefetch.global.L2 [%1];\n" ::"l"(keys_of_block),
                 "l"(keys_of_block + place.value_offset));
  }
}

template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kAhead ? 1 : 3) decode_kernel(const Decode p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<P>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  let_next_begin();

  const DeviceSequence sequence = p.sequences.sequences[blockIdx.z];
  Part part;
  part.sequence = blockIdx.z;
  part.high = sequence.first_position;
  part.low = p.window ? max(0, part.high - p.window + 1) : 0;
  part.first_span = part.low / static_cast<int>(kKeySpan), part.last_span = part.high / static_cast<int>(kKeySpan);
  if (sequence.rows == 0 || blockIdx.x > part.last_span) return;
  const int group = p.heads / p.kv_heads, kv_head = blockIdx.y / p.row_tiles, tile = blockIdx.y % p.row_tiles;
  part.head = kv_head * group + tile * kRows;
  part.present = min(kRows, group - tile * kRows);
  part.row = sequence.row_begin;
  const int head_elements = static_cast<int>(kKvBlock) * p.head_dim;
  const KvPlace place{.blocks = p.sequences.blocks + sequence.block_begin,
                      .offset = p.kv_offset + int64_t{kv_head} * head_elements,
                      .value_offset = p.kv_heads * head_elements,
                      .head_dim = p.head_dim,
                      .end = part.high + 1};
  // The list of sequences is from before this step; so are all keys and values but the newest.
  prefetch_span(part, place, blockIdx.x, head_elements);
  wait_for_previous();
  for (part.span = blockIdx.x; part.span <= part.last_span; part.span += gridDim.x) {
    if (part.span < part.first_span) continue;
    compute_span<P>(shared, p, part, place, warp, lane);
    if (part.first_span == part.last_span) return;
    if (arrived_last(p, part, shared.last)) join_spans(p, part);
  }
}

}  // namespace

void attention_decode(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                      const DeviceSequences& sequences, Stream& stream) {
  const int64_t num_sequences = sequences.num_sequences;
  if (num_sequences == 0 || q.shape[0] == 0 || sequences.max_positions == 0) return;
  const int64_t spans = (sequences.max_positions + kKeySpan - 1) / kKeySpan, group = shape.heads / shape.kv_heads;
  const int64_t row_tiles = (group + kRows - 1) / kRows, parts = num_sequences * spans * shape.heads;
  float* const scratch = sequences.span_scratch;
  float* const ml = scratch + parts * shape.head_dim;
  const Decode arguments{.o = head_rows<bf16>(o),
                         .q = head_rows<const bf16>(q),
                         .stats = data_of<float>(stats),
                         .stats_stride = stats.row_stride,
                         .heads = static_cast<int>(shape.heads),
                         .kv_heads = static_cast<int>(shape.kv_heads),
                         .head_dim = static_cast<int>(shape.head_dim),
                         .window = static_cast<int>(shape.window),
                         .kv_offset = shape.kv_offset,
                         .scale = shape.scale,
                         .c = log2_scale(shape),
                         .sequences = sequences,
                         .row_tiles = static_cast<int>(row_tiles),
                         .spans = static_cast<int>(spans),
                         .partial_o = scratch,
                         .partial_ml = reinterpret_cast<float2*>(ml),
                         .counters = reinterpret_cast<unsigned*>(ml + 2 * parts)};
  // max_positions is only a bound: rather than many CTAs that find nothing to do, a few that may take several spans.
  const int64_t filling =
      (kFillingCtas + num_sequences * shape.kv_heads * row_tiles - 1) / (num_sequences * shape.kv_heads * row_tiles);
  const int64_t span_ctas = std::min(spans, std::max(kLeastSpanCtas, filling));
  const dim3 grid(static_cast<unsigned>(span_ctas), static_cast<unsigned>(shape.kv_heads * row_tiles),
                  static_cast<unsigned>(num_sequences));
  const auto launch = [&]<class P>() {
    constexpr int kBytes = sizeof(Shared<P>);
    allow_shared(decode_kernel<P>, kBytes, "attention_forward");
    launch_early(decode_kernel<P>, grid, P::kWarps * 32, kBytes, stream_of(stream), arguments);
  };
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    // max_positions may be far above what is there: count at most four spans.
    if (num_sequences * shape.kv_heads * row_tiles * std::min<int64_t>(span_ctas, 4) <= kFewCtas)
      launch.template operator()<Plan<kDim, true>>();
    else
      launch.template operator()<Plan<kDim, false>>();
  });
  check_launch("attention_forward", {q, o});
}

}  // namespace lockstep::kernels::cuda
