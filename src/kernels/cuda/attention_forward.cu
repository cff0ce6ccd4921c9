// Attention of tiles of 64 rows: training, prefill, chunked prefill. FlashAttention-2 (arXiv 2307.08691) by mma.sync,
// with the sums split at spans (attention_common.cuh defines how).
//
// A CTA handles one tile and one or two query heads of a group, with four warps of 16 rows each per head; two heads
// share the keys and values they read. Blocks of 64 keys are loaded with cp.async, one block ahead.
// On Hopper attention_forward_wgmma.cu is used where it can be; it gives the same bits. attention_forward_wide.cu takes
// head_dim above 128.
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_wide.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWarpsPerHead = kTileRows / 16;
constexpr int kMaxHeads = 2;  // per CTA

// Loads blocks of 64 keys into shared memory: each warp copies 16 keys and their values, or its share of them.
template <int kDim>
struct KvLoader {
  KvPlace place;
  int warp, lane;
  const bf16* next;  // the keys of the block that is copied next; the address is read early

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

template <int kDim>
__device__ void load_queries(uint32_t (&q)[kDim / 16][4], const Forward& p, int64_t row, int head, int present,
                             int lane) {
  const int column = head * p.head_dim + 2 * (lane & 3);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4;
         ++i) {  // registers: (row g, first 8 columns), (g + 8, first 8), (g, last 8), (g + 8, last 8)
      const int r = lane / 4 + (i & 1) * 8;
      const bool valid = r < present && 16 * k < p.head_dim;
      q[k][i] = valid ? load_pair(p.q.at(row + r, column + 16 * k + (i >> 1) * 8), p.q.by_4) : 0;
    }
}

template <int kDim>
__global__ void __launch_bounds__(kMaxHeads* kWarpsPerHead * 32, 1) forward_kernel(const Forward p) {
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
  const int first_row = tile.first + warp % kWarpsPerHead * 16;  // position of this warp's first row in the sequence
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
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, p, row, head, present, lane);
  rows.begin_span();
  bool first_span = true;
  for (int block = first_block; block <= last_block; ++block) {
    copy_wait<0>();
    __syncthreads();  // the block has arrived, and no warp reads the other stage any more
    const int stage = (block - first_block) & 1;
    bf16* const here = tiles + stage * 2 * kTile;
    bf16* const ahead = tiles + (stage ^ 1) * 2 * kTile;
    if (block < last_block) loader.load(ahead, ahead + kTile, block + 1);
    copy_commit();
    if (present > 0 && rows.sees(block * kKeyBlock)) {
      float s[8][4] = {};
      score_block<kDim>(s, q, here, lane);
      rows.softmax(s, block * kKeyBlock, p.c, lane);
      add_weighted_rows<kDim>(rows.o, s, here + kTile, lane);
    }
    const bool last = block == last_block;
    if (last || block % kBlocksPerSpan == kBlocksPerSpan - 1) {
      rows.end_span(totals, static_cast<int>(blockDim.x), first_span, last, p.c);
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
  if (takes_wgmma(arguments)) {
    launch_forward_wgmma(arguments, stream);
    return check_launch("attention_forward", {q, o});
  }
  if (is_wide(shape.head_dim)) {
    launch_forward_wide(arguments, stream);
    return check_launch("attention_forward", {q, o});
  }
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    int cta_heads = shape.heads / shape.kv_heads % kMaxHeads == 0 ? kMaxHeads : 1;
    constexpr int tiles = 4 * kKeyBlock * kDim * static_cast<int>(sizeof(bf16));
    constexpr int kTotalsOfHead = kWarpsPerHead * 32 * kDim / 8 * static_cast<int>(sizeof(float4));
    // No running totals are needed where no row can see two spans.
    const auto totals_of = [&](int heads) { return sequences.max_positions > kKeySpan ? heads * kTotalsOfHead : 0; };
    if (static_cast<size_t>(tiles + totals_of(cta_heads)) > shared_limit()) cta_heads = 1;
    const int totals = totals_of(cta_heads), threads = cta_heads * kWarpsPerHead * 32;
    allow_shared<forward_kernel<kDim>>(std::min<size_t>(tiles + kMaxHeads * kTotalsOfHead, device_shared_limit()));
    forward_kernel<kDim><<<static_cast<unsigned>(sequences.num_tiles * (shape.heads / cta_heads)), threads,
                           static_cast<size_t>(tiles + totals), stream_of(stream)>>>(arguments);
  });
  check_launch("attention_forward", {q, o});
}

}  // namespace lockstep::kernels::cuda
