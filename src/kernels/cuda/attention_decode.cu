// Decode attention: one row per sequence. head_dim above 128 is done in two halves of its columns.
//
// With many CTAs, a block's values are loaded into the memory of its keys once those are used: three CTAs then fit on
// a multiprocessor and their loads overlap. With few CTAs latency dominates: four extra warps load the values at once.
//
// A span that several sequences share is read by one CTA, whose tile holds the query heads of all of them. Each row
// gets the bits that it would have got alone.
#include <climits>

#include "kernels/cuda/attention_decode_tile.cuh"
#include "kernels/cuda/attention_wide.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/key_spans.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int64_t kFillingCtas = 2048, kMinSpanCtas = 8, kMinOwnSpanCtas = 2;
static_assert(kDecodeRows == kSharedSpanRows);

// A warp copies 16 keys or values that all exist, so that every address is a constant away from one of a few.
template <int kDim>
__device__ __forceinline__ void copy_whole_kv_block(bf16* tile, const bf16* from, int lane) {
  constexpr int kChunks = kDim / 8, kStep = 32 / kChunks;  // rows copied per step, a power of 2
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

// Columns first_column .. first_column + kDim - 1 of the tile's queries.
template <int kDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kDim / 16][4], const Decode& p, const SpanTile& tile,
                                             int first_column, int lane) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const DecodeRow& row = tile.rows[i & 1];
      const int column = first_column + 16 * k + (i >> 1) * 8 + 2 * (lane & 3);
      const bool valid = row.present && first_column + 16 * k < p.head_dim;
      q[k][i] = valid ? load_pair(p.q.at(row.row, row.head * p.head_dim + column), p.q.by_4) : 0;
    }
}

// Scores of a warp's own block. The same warp then loads the values, unless extra warps do.
template <class P>
__device__ __forceinline__ void score_own_block(DecodeShared<P>& shared, float (&s)[8][4], const bf16* const (&from)[4],
                                                const Decode& p, const SpanTile& tile, const KvPlace& place,
                                                int first_key, int warp, int lane) {
  constexpr int kDim = P::kDim;
  copy_block<kDim>(shared.keys[warp], from, 0, first_key, place.end, p.head_dim, lane);
  copy_commit();
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, p, tile, 0, lane);
  copy_wait<0>();
  __syncwarp();
  score_block<kDim>(s, q, shared.keys[warp], lane);
  if constexpr (!P::kAhead) {
    __syncwarp();
    copy_block<kDim>(shared.values_of(warp), from, place.value_offset, first_key, place.end, p.head_dim, lane);
    copy_commit();
  }
  mask_span(s, tile, first_key, lane);
}

template <class P>
__device__ __forceinline__ void compute_span(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                             const KvPlace& place, int warp, int lane) {
  const int own = warp % kBlocksPerSpan, first_key = (tile.span * kBlocksPerSpan + own) * kKeyBlock;
  const bool mine = tile.sees(own);
  float s[8][4] = {};
  if (mine) {
    const bf16* from[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) from[b] = place.at(first_key + 16 * b);
    if (warp < kBlocksPerSpan) {
      score_own_block<P>(shared, s, from, p, tile, place, first_key, own, lane);
    } else {
      copy_block<P::kDim>(shared.values_of(own), from, place.value_offset, first_key, place.end, p.head_dim, lane);
      copy_commit();
    }
  }
  const Rescaling rescaling = share_scores<P>(shared, p, s, mine, warp, lane);
  add_values<P>(shared, p, tile, rescaling, 0, warp, lane);
}

// compute_span of a head with more than kDim columns, half of them in shared memory at a time. A warp's scores are one
// chain over both halves of its own block of keys; the values of one half take the place of the other's when all warps
// have used them.
template <class P>
__device__ __forceinline__ void compute_wide_span(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                                  const KvPlace& place, int warp, int lane) {
  static_assert(P::kHalves == 2 && !P::kAhead);
  constexpr int kDim = P::kDim;
  const int first_key = (tile.span * kBlocksPerSpan + warp) * kKeyBlock;
  const bool mine = tile.sees(warp);
  bf16* const own = shared.keys[warp];
  const bf16* from[4] = {};
  if (mine)
#pragma unroll
    for (int b = 0; b < 4; ++b) from[b] = place.at(first_key + 16 * b);
  const auto load = [&](int64_t offset, int first_column) {
    if (mine)
#pragma unroll
      for (int b = 0; b < 4; ++b)
        copy_kv_columns<kDim>(own, 16 * b, from[b] + offset, place.end - (first_key + 16 * b), p.head_dim, first_column,
                              lane, 32);
    copy_commit();
  };
  float s[8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load(0, half * kDim);
    uint32_t q[kDim / 16][4];
    load_queries<kDim>(q, p, tile, half * kDim, lane);
    copy_wait<0>();
    __syncwarp();
    if (mine) score_block<kDim>(s, q, own, lane);
    __syncwarp();
  }
  load(place.value_offset, 0);
  if (mine) mask_span(s, tile, first_key, lane);
  const Rescaling rescaling = share_scores<P>(shared, p, s, mine, warp, lane);
  add_values<P>(shared, p, tile, rescaling, 0, warp, lane);
  __syncthreads();
  load(place.value_offset, kDim);
  copy_wait<0>();
  __syncthreads();
  add_values<P>(shared, p, tile, rescaling, kDim, warp, lane);
}

// Prefetches the keys and values of a span into the L2 cache. Only for CTAs that would otherwise wait for the kernels
// before them: a prefetched line is looked up twice, and many sequences are bound by the L2 cache's throughput.
__device__ __forceinline__ void prefetch_span(const SpanTile& tile, const KvPlace& place, int head_elements) {
  constexpr int kLine = 128 / sizeof(bf16), kBlock = static_cast<int>(kKvBlock), kSpan = static_cast<int>(kKeySpan);
  const int lines = head_elements / kLine, first = max(tile.span * kSpan, tile.low / kBlock * kBlock);
  const int keys = min(tile.high + 1, (tile.span + 1) * kSpan) - first;
  const int all = (keys + kBlock - 1) / kBlock * lines;
  for (int i = threadIdx.x; i < all; i += blockDim.x) {
    const bf16* const keys_of_block = place.at(first + i / lines * kBlock) + i % lines * kLine;
    asm volatile("prefetch.global.L2 [%0];\nprefetch.global.L2 [%1];\n" ::"l"(keys_of_block),
                 "l"(keys_of_block + place.value_offset));
  }
}

// Fills the tile's rows when `count` neighbouring sequences from part.sequence on share the span, which ends before all
__device__ __forceinline__ void share_tile(SpanTile& tile, const Decode& p, const DecodePart& part, int count,
                                           int lane) {
  constexpr int kSpan = static_cast<int>(kKeySpan);
  tile.alone = false;
  int first_low = INT_MAX, last_low = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h, member = r / part.present;
    DecodeRow& row = tile.rows[h];
    row.present = member < count;
    if (!row.present) continue;
    const DecodePart own(p, part.sequence + member, part.kv_head);
    row = {.present = own.low < (tile.span + 1) * kSpan,
           .sequence = own.sequence,
           .head = own.head + r % part.present,
           .low = own.low,
           .row = own.row};
    first_low = min(first_low, own.low), last_low = max(last_low, own.low);
  }
  tile.low = static_cast<int>(__reduce_min_sync(~0u, first_low));
  tile.all_from = static_cast<int>(__reduce_max_sync(~0u, last_low));
}

// Counts the span as written for `count` sequences; the last CTA to arrive for a sequence merges its spans.
__device__ __forceinline__ void merge_finished(bool* last, const Decode& p, const DecodePart& part, int count,
                                               int span) {
  __syncthreads();
  const int member = threadIdx.x;
  if (member < count) {
    const DecodePart own = member == 0 ? part : DecodePart(p, part.sequence + member, part.kv_head);
    last[member] = own.first_span <= span && arrive(p, own);
  }
  __syncthreads();
  for (int i = 0; i < count; ++i)
    if (last[i]) merge_spans(p, i == 0 ? part : DecodePart(p, part.sequence + i, part.kv_head));
}

// A CTA handles every gridDim.x-th of the spans that one sequence has to itself, or one span that several share.
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas) decode_kernel(const Decode p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<P>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, slot = blockIdx.x;
  let_next_begin();

  // CTAs of shared spans, which have the most work, are scheduled first.
  const DeviceSequences& all = p.sequences;
  const int shared_ctas = static_cast<int>(all.num_shared_spans),
            shared_rows = (shared_ctas + gridDim.x - 1) / gridDim.x;
  const bool shares = blockIdx.z < shared_rows;
  SharedSpan work{.sequence = static_cast<int>(blockIdx.z) - shared_rows, .count = 1, .span = slot};
  if (shares) {
    const int index = blockIdx.z * gridDim.x + slot;
    if (index >= shared_ctas) return;
    work = all.shared_spans[index];
    if (work.count == 0) return;
  } else if (all.first_own_span) {
    work.span += all.first_own_span[work.sequence];
  }
  const DeviceSequence sequence = all.sequences[work.sequence];
  const DecodePart part(p, sequence, work.sequence, blockIdx.y);
  if (sequence.rows == 0 || work.span > part.last_span) return;
  const KvPlace place = part.place(p, sequence.block_begin, part.high + 1);
  const int last_span = shares ? work.span : part.last_span;
  SpanTile tile(part, work.span, lane);
  if (shares) share_tile(tile, p, part, work.count, lane);
  // The list of sequences was written before this step; so were all keys and values but the newest.
  if (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) < static_cast<unsigned>(p.early_ctas))
    prefetch_span(tile, place, static_cast<int>(kKvBlock) * p.head_dim);
  wait_for_previous();
  for (; tile.span <= last_span; tile.span += gridDim.x) {
    if (tile.low >= (tile.span + 1) * static_cast<int>(kKeySpan)) continue;
    if constexpr (P::kHalves == 1)
      compute_span<P>(shared, p, tile, place, warp, lane);
    else
      compute_wide_span<P>(shared, p, tile, place, warp, lane);
    if (tile.alone) return;
    merge_finished(shared.last, p, part, work.count, tile.span);
  }
}

}  // namespace

Decode decode_arguments(const Tensor& o, const Tensor& stats, const ConstTensor& q, const AttentionShape& shape,
                        const DeviceSequences& sequences, int tile_rows) {
  const int64_t spans = (sequences.max_positions + kKeySpan - 1) / kKeySpan, group = shape.heads / shape.kv_heads;
  const int64_t parts = sequences.num_sequences * spans * shape.heads;
  float* const scratch = sequences.span_scratch;
  float* const ml = scratch + parts * shape.head_dim;
  return {.o = head_rows<bf16>(o),
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
          .row_tiles = static_cast<int>((group + tile_rows - 1) / tile_rows),
          .spans = static_cast<int>(spans),
          .partial_o = scratch,
          .partial_ml = reinterpret_cast<float2*>(ml),
          .counters = reinterpret_cast<unsigned*>(ml + 2 * parts)};
}

DecodeCtas decode_ctas(const AttentionShape& shape, const DeviceSequences& sequences, int tile_rows) {
  const int64_t spans = (sequences.max_positions + kKeySpan - 1) / kKeySpan, group = shape.heads / shape.kv_heads;
  const int64_t items = shape.kv_heads * ((group + tile_rows - 1) / tile_rows);
  const int64_t parts = sequences.num_sequences * items;
  // max_positions may be far larger than the actual lengths, so at most four spans are counted.
  const bool few = parts * std::min<int64_t>(spans, 4) <= kFewCtas;
  // max_positions is only a bound: a few CTAs that may handle several spans each are better than many idle ones. Of
  // sequences that share most of their spans, one or two spans are left.
  const int64_t least = !few && sequences.num_shared_spans > 0 ? kMinOwnSpanCtas : kMinSpanCtas;
  return {.of_spans = std::min(spans, std::max(least, (kFillingCtas + parts - 1) / parts)), .items = items, .few = few};
}

void attention_decode(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                      const DeviceSequences& sequences, Stream& stream) {
  if (sequences.num_sequences == 0 || q.shape[0] == 0 || sequences.max_positions == 0) return;
  const DecodeCtas ctas = decode_ctas(shape, sequences);
  Decode arguments = decode_arguments(o, stats, q, shape, sequences);
  // Few CTAs are bound by latency, so reading shared spans once would not help.
  if (ctas.few) arguments.sequences.num_shared_spans = 0, arguments.sequences.first_own_span = nullptr;
  const int64_t shared_rows = (arguments.sequences.num_shared_spans + ctas.of_spans - 1) / ctas.of_spans;
  const dim3 grid(static_cast<unsigned>(ctas.of_spans), static_cast<unsigned>(ctas.items),
                  static_cast<unsigned>(shared_rows + sequences.num_sequences));
  const auto launch = [&]<class P>() {
    constexpr int kBytes = sizeof(DecodeShared<P>);
    arguments.early_ctas = P::kCtas * library_of(stream).multiprocessors;
    allow_shared<decode_kernel<P>>(kBytes);
    launch_early(decode_kernel<P>, grid, P::kWarps * 32, kBytes, stream_of(stream), arguments);
  };
  if (is_wide(shape.head_dim)) {
    launch.template operator()<DecodeTraits<kHalfColumns, false, 2>>();
    return check_launch("attention_forward", {q, o});
  }
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    if (ctas.few && sizeof(DecodeShared<DecodeTraits<kDim, true>>) <= shared_limit())
      launch.template operator()<DecodeTraits<kDim, true>>();
    else
      launch.template operator()<DecodeTraits<kDim, false>>();
  });
  check_launch("attention_forward", {q, o});
}

}  // namespace lockstep::kernels::cuda
