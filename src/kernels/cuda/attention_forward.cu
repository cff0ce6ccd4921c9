// Attention of tiles of 64 rows: training, prefill, chunked prefill. FlashAttention-2 (arXiv 2307.08691) by mma.sync,
// with the sums cut at spans (attention_common.cuh has the rule).
//
// A CTA takes one tile and one or two query heads of a group, four warps of 16 rows each per head; two heads share the
// keys and values they read. Blocks of 64 keys come by cp.async, one ahead.
#include "kernels/cuda/attention_common.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWarpsPerHead = kTileRows / 16;
constexpr int kMostHeads = 2;  // of one CTA

struct Forward {
  HeadRows<bf16> o;
  HeadRows<const bf16> q;
  float* stats;  // or nullptr
  int64_t stats_stride;
  int heads, kv_heads, head_dim, window;
  int64_t kv_offset;
  float scale, c;
  DeviceSequences sequences;
};

// Blocks of 64 keys on their way to shared memory: each warp copies 16 keys and their values, or its share of them.
template <int kDim>
struct KvLoader {
  KvPlace place;
  int warp, lane;
  const bf16* next;  // of the block that will be asked for next, read early

  __device__ KvLoader(const KvPlace& p, int first_block)
      : place(p), warp(threadIdx.x / 32), lane(threadIdx.x & 31), next(p.at(position(first_block))) {}

  __device__ int position(int block) const { return block * kKeyBlock + (warp & 3) * static_cast<int>(kKvBlock); }

  __device__ void load(bf16* keys, bf16* values, int block) {
    const int row = (warp & 3) * static_cast<int>(kKvBlock), present = place.end - position(block);
    const int first = lane + 32 * (warp >> 2), step = static_cast<int>(blockDim.x) / 4;
    copy_kv_block<kDim>(keys, row, next, present, place.head_dim, first, step);
    copy_kv_block<kDim>(values, row, next + place.value_offset, present, place.head_dim, first, step);
    next = place.at(position(block + 1));
  }
};

// What a warp knows about its 16 rows; a lane has rows g and g + 8.
template <int kDim>
struct WarpRows {
  uint32_t q[kDim / 16][4];
  float o[kDim / 8][4];
  float m[2], l[2];  // of the span; l of the lane
  RowTotal total[2];
  int low[2], high[2];            // visible keys
  int warp_low[2], warp_high[2];  // the least and the largest of low and high over the warp's rows

  __device__ __forceinline__ void begin_span() {
#pragma unroll
    for (int h = 0; h < 2; ++h) m[h] = kNoKey, l[h] = 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = 0;
  }

  __device__ __forceinline__ bool sees(int first_key) const {
    return first_key <= warp_high[1] && first_key + kKeyBlock > warp_low[0];
  }
  __device__ __forceinline__ bool sees_all(int first_key) const {
    return first_key + kKeyBlock - 1 <= warp_high[0] && first_key >= warp_low[1];
  }

  __device__ __forceinline__ void block(const bf16* keys, const bf16* values, int first_key, float c, int lane) {
    float s[8][4] = {};
    score_block<kDim>(s, q, keys, lane);
    if (!sees_all(first_key)) mask_block(s, first_key, low, high, lane);
    const float next[2] = {fmaxf(m[0], block_max<0>(s)), fmaxf(m[1], block_max<1>(s))};
    const float f[2] = {rescale(m[0], next[0], c), rescale(m[1], next[1], c)};
    m[0] = next[0], m[1] = next[1];
    l[0] = __fmaf_rn(l[0], f[0], block_exp<0>(s, __fmul_rn(m[0], c), c));
    l[1] = __fmaf_rn(l[1], f[1], block_exp<1>(s, __fmul_rn(m[1], c), c));
    // Times 1 changes nothing, and a running maximum soon stands still.
    if (__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] = __fmul_rn(o[n][e], f[e >> 1]);
    }
    add_weighted_rows<kDim>(o, s, values, lane);
  }

  // The span joins the total, whose o lies in this thread's slots of `totals` between spans. The first join would copy
  // exactly, so it does; after the last the total's o is in o.
  __device__ __forceinline__ void end_span(float4* totals, bool first, bool last, float c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h].join(m[h], quad_sum(l[h]), c);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      float4& slot = totals[n * blockDim.x];
      if (!first) {
        const float4 t = slot;
        o[n][0] = total[0].joined(t.x, o[n][0]), o[n][1] = total[0].joined(t.y, o[n][1]);
        o[n][2] = total[1].joined(t.z, o[n][2]), o[n][3] = total[1].joined(t.w, o[n][3]);
      }
      if (!last) slot = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    }
    if (!last) begin_span();
  }
};

template <int kDim>
__device__ void load_queries(WarpRows<kDim>& rows, const Forward& p, int64_t row, int head, int present, int lane) {
  const int column = head * p.head_dim + 2 * (lane & 3);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4;
         ++i) {  // registers: (row g, first 8 columns), (g + 8, first 8), (g, last 8), (g + 8, last 8)
      const int r = lane / 4 + (i & 1) * 8;
      const bool valid = r < present && 16 * k < p.head_dim;
      rows.q[k][i] = valid ? load_pair(p.q.at(row + r, column + 16 * k + (i >> 1) * 8), p.q.by_4) : 0;
    }
}

template <int kDim>
__device__ void place_rows(WarpRows<kDim>& rows, int position, int window, int lane) {
  const auto low = [&](int i) { return window ? max(0, i - window + 1) : 0; };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.high[h] = position + lane / 4 + 8 * h, rows.low[h] = low(rows.high[h]);
    rows.warp_high[h] = position + 15 * h, rows.warp_low[h] = low(rows.warp_high[h]);
  }
}

template <int kDim>
__device__ void store_rows(const WarpRows<kDim>& rows, const Forward& p, int64_t row, int head, int present, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= present) continue;
    const float inverse = rows.total[h].inverse();
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      if (8 * n < p.head_dim)
        store_pair(p.o.at(row + r, head * p.head_dim + 8 * n + 2 * (lane & 3)), p.o.by_4,
                   finished(rows.o[n][2 * h], inverse), finished(rows.o[n][2 * h + 1], inverse));
    if (p.stats && (lane & 3) == 0) {
      float* stats = p.stats + (row + r) * p.stats_stride + 2 * head;
      stats[0] = __fmul_rn(rows.total[h].m, p.scale), stats[1] = rows.total[h].l;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kMostHeads* kWarpsPerHead * 32, 1) forward_kernel(const Forward p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kTile = kKeyBlock * kDim;
  bf16* const tiles = reinterpret_cast<bf16*>(shared);  // [2 stages][keys, values]
  float4* const totals = reinterpret_cast<float4*>(tiles + 4 * kTile) + threadIdx.x;

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int cta_heads = blockDim.x / (32 * kWarpsPerHead), head_groups = p.heads / cta_heads;
  const QueryTile tile = p.sequences.tiles[blockIdx.x / head_groups];
  const DeviceSequence sequence = p.sequences.sequences[tile.sequence];
  const int head = (blockIdx.x % head_groups) * cta_heads + warp / kWarpsPerHead;
  const int kv_head = head / (p.heads / p.kv_heads);
  const int first_row = tile.first + warp % kWarpsPerHead * 16;  // of the sequence, of this warp
  const int64_t row = int64_t{sequence.row_begin} + first_row;
  const int present = sequence.rows - first_row;

  const int first_position = sequence.first_position + tile.first;
  const int end = sequence.first_position + min(tile.first + kTileRows, sequence.rows);
  const int first_block = (p.window ? max(0, first_position - p.window + 1) : 0) / kKeyBlock;
  const int last_block = (end - 1) / kKeyBlock;

  WarpRows<kDim> rows;
  place_rows(rows, sequence.first_position + first_row, p.window, lane);
  const int head_elements = static_cast<int>(kKvBlock) * p.head_dim;
  KvLoader<kDim> loader({.blocks = p.sequences.blocks + sequence.block_begin,
                         .offset = p.kv_offset + int64_t{kv_head} * head_elements,
                         .value_offset = p.kv_heads * head_elements,
                         .head_dim = p.head_dim,
                         .end = end},
                        first_block);
  loader.load(tiles, tiles + kTile, first_block);
  copy_commit();
  load_queries(rows, p, row, head, present, lane);
  rows.begin_span();
  bool first_span = true;
  for (int block = first_block; block <= last_block; ++block) {
    copy_wait<0>();
    __syncthreads();  // the block is there, and nobody reads the other stage any more
    const int stage = (block - first_block) & 1;
    bf16* const here = tiles + stage * 2 * kTile;
    bf16* const ahead = tiles + (stage ^ 1) * 2 * kTile;
    if (block < last_block) loader.load(ahead, ahead + kTile, block + 1);
    copy_commit();
    if (present > 0 && rows.sees(block * kKeyBlock)) rows.block(here, here + kTile, block * kKeyBlock, p.c, lane);
    const bool last = block == last_block;
    if (last || block % kBlocksPerSpan == kBlocksPerSpan - 1) {
      rows.end_span(totals, first_span, last, p.c);
      first_span = false;
    }
  }
  store_rows(rows, p, row, head, present, lane);
}

}  // namespace

void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                       const DeviceSequences& sequences, Stream& stream) {
  if (!sequences.tiles) return attention_decode(o, stats, q, shape, sequences, stream);
  if (sequences.num_tiles == 0 || q.shape[0] == 0) return;
  const Forward arguments{.o = head_rows<bf16>(o),
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
                          .sequences = sequences};
  const int cta_heads = shape.heads / shape.kv_heads % kMostHeads == 0 ? kMostHeads : 1;
  const int threads = cta_heads * kWarpsPerHead * 32;
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    const int tiles = 4 * kKeyBlock * kDim * static_cast<int>(sizeof(bf16));
    // No totals where no row can see two spans.
    const int totals = sequences.max_positions > kKeySpan ? threads * kDim / 8 * static_cast<int>(sizeof(float4)) : 0;
    allow_shared(forward_kernel<kDim>, tiles + totals, "attention_forward");
    forward_kernel<kDim><<<static_cast<unsigned>(sequences.num_tiles * (shape.heads / cta_heads)), threads,
                           static_cast<size_t>(tiles + totals), stream_of(stream)>>>(arguments);
  });
  check_launch("attention_forward", {q, o});
}

}  // namespace lockstep::kernels::cuda
