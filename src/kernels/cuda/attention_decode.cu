// Decode attention: one row per sequence.
//
// A block's values are loaded into the memory of its keys once those are used: three CTAs then fit on a multiprocessor
// and their loads overlap. Heads of 64 or 128 columns in aligned rows have kernels of their own; one kernel takes all
// others, half of the columns of a head that has more than 128 at a time.
//
// A span that several sequences share is read by one CTA, whose tile holds the query heads of all of them. Each row
// gets the bits that it would have got alone.
#include <algorithm>
#include <climits>

#include "kernels/cuda/attention_decode_tile.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/key_spans.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int64_t kFillingCtas = 2048, kMinSpanCtas = 8, kMinOwnSpanCtas = 2;
static_assert(kDecodeRows == kSharedSpanRows);

// Of a head with more than kDim columns, half are in shared memory at a time: a warp's scores are one chain over both
// halves of its own block of keys, and the values of one half take the place of the other's when all warps have used
// them.
template <class P>
__device__ __forceinline__ void compute_span(DecodeShared<P>& shared, const Decode& p, const SpanTile& tile,
                                             const KvPlace& place, int warp, int lane) {
  constexpr int kDim = P::kDim;
  const int first_key = (tile.span * kBlocksPerSpan + warp) * kKeyBlock;
  const bool mine = tile.sees(warp);
  bf16* const own = shared.tiles[warp];
  const bf16* const from = place.at(first_key + static_cast<int>(kKvBlock) * (lane & 3));
  const auto load = [&](int64_t offset, int first_column) {
    if (mine) copy_block<P>(own, from + offset, place.end - first_key, p.head_dim, first_column, lane);
  };
  const int halves = !P::kWhole && p.head_dim > kDim ? 2 : 1;
  float s[8][4] = {};
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    if (half > 0) __syncthreads();
    load(0, half * kDim);
    copy_queries<P>(shared.queries, p, tile, half * kDim, warp, lane);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    if (mine) add_scores<kDim>(s, shared.queries, own, lane);
  }
  __syncwarp();
  load(place.value_offset, 0);
  copy_commit();
  if (mine) mask_span(s, tile, first_key, lane);
  float m[2];
  share_scores<P>(shared, m, s, mine, p.c, warp, lane);
  add_values<P>(shared, p, tile, m, 0, warp, lane);
  if (halves == 1) return;
  __syncthreads();
  load(place.value_offset, kDim);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  add_values<P>(shared, p, tile, m, kDim, warp, lane);
}

// Prefetches the keys of a span into the L2 cache. Only for CTAs that would otherwise wait for the kernels before them:
// a prefetched line is looked up twice, and many sequences are bound by the L2 cache's throughput. Values are wanted
// later, and asked for here they delay what the kernels ahead still load.
__device__ __forceinline__ void prefetch_keys(const SpanTile& tile, const KvPlace& place, int head_elements) {
  constexpr int kLine = 128 / sizeof(bf16), kBlock = static_cast<int>(kKvBlock), kSpan = static_cast<int>(kKeySpan);
  const int lines = head_elements / kLine, first = max(tile.span * kSpan, tile.low / kBlock * kBlock);
  const int keys = min(tile.high + 1, (tile.span + 1) * kSpan) - first;
  const int all = (keys + kBlock - 1) / kBlock * lines;
  for (int i = threadIdx.x; i < all; i += blockDim.x)
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(place.at(first + i / lines * kBlock) + i % lines * kLine));
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
    const DecodePart own = part.for_sequence(p, part.sequence + member);
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
template <class P>
__device__ __forceinline__ void merge_finished(bool* last, const Decode& p, const DecodePart& part, int count,
                                               int span) {
  __syncthreads();
  const int member = threadIdx.x;
  if (member < count) {
    const DecodePart own = part.for_sequence(p, part.sequence + member);
    last[member] = own.first_span <= span && arrive(p, own);
  }
  __syncthreads();
  for (int i = 0; i < count; ++i)
    if (last[i]) merge_spans<P::kWhole ? P::kDim : 0>(p, part.for_sequence(p, part.sequence + i));
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
  const bool shares = blockIdx.z < static_cast<unsigned>(p.shared_rows);
  SharedSpan work{.sequence = static_cast<int>(blockIdx.z) - p.shared_rows, .count = 1, .span = slot};
  if (shares) {
    const int index = blockIdx.z * gridDim.x + slot;
    if (index >= static_cast<int>(all.num_shared_spans)) return;
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
    prefetch_keys(tile, place, static_cast<int>(kKvBlock) * P::head_dim(p));
  wait_for_previous();
  for (; tile.span <= last_span; tile.span += gridDim.x) {
    if (tile.low >= (tile.span + 1) * static_cast<int>(kKeySpan)) continue;
    compute_span<P>(shared, p, tile, place, warp, lane);
    if (tile.alone) return;
    merge_finished<P>(shared.last, p, part, work.count, tile.span);
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
          .group = static_cast<int>(group),
          .tile_rows = tile_rows,
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
  const DecodeCtas ctas = decode_ctas(shape, sequences, kDecodeRows);
  Decode arguments = decode_arguments(o, stats, q, shape, sequences, kDecodeRows);
  // Few CTAs are bound by latency, so reading shared spans once would not help.
  if (ctas.few) arguments.sequences.num_shared_spans = 0, arguments.sequences.first_own_span = nullptr;
  arguments.shared_rows = static_cast<int>((arguments.sequences.num_shared_spans + ctas.of_spans - 1) / ctas.of_spans);
  const dim3 grid(static_cast<unsigned>(ctas.of_spans), static_cast<unsigned>(ctas.items),
                  static_cast<unsigned>(arguments.shared_rows + sequences.num_sequences));
  const auto launch = [&]<class P>() {
    constexpr int kBytes = sizeof(DecodeShared<P>);
    arguments.early_ctas = P::kCtas * library_of(stream).multiprocessors;
    allow_shared<decode_kernel<P>>(kBytes);
    launch_early(decode_kernel<P>, grid, P::kWarps * 32, kBytes, stream_of(stream), arguments);
  };
  const bool whole = !is_wide(shape.head_dim) && arguments.q.by_16 && arguments.o.by_4;
  if (whole && shape.head_dim == 128)
    launch.template operator()<DecodeTraits<128, true>>();
  else if (whole && shape.head_dim == 64)
    launch.template operator()<DecodeTraits<64, true>>();
  else
    launch.template operator()<DecodeTraits<kHalfColumns, false>>();
  check_launch("attention_forward", {q, o});
}

}  // namespace lockstep::kernels::cuda
