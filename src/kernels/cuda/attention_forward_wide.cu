// Attention of tiles of 64 rows for head_dim 144 .. 256, with the sums of attention_forward.cu.
//
// A CTA handles one tile, one query head and half of the columns of o, with four warps of 16 rows each. It computes the
// scores from whole keys (so two CTAs compute the same scores) and loads its own half of the values only. The next
// block's keys are loaded while values are multiplied, the values while scores are computed.
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_wide.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWarps = kTileRows / 16, kThreads = kWarps * 32;
constexpr int kKeyElements = kKeyBlock * kWideDim, kValueElements = kKeyBlock * kHalfColumns;

__device__ __forceinline__ void load_wide_queries(uint32_t (&q)[kWideDim / 16][4], const Forward& p, int64_t row,
                                                  int head, int present, int lane) {
  const int column = head * p.head_dim + 2 * (lane & 3);
#pragma unroll
  for (int k = 0; k < kWideDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 4 + (i & 1) * 8;
      const bool valid = r < present && 16 * k < p.head_dim;
      q[k][i] = valid ? load_pair(p.q.at(row + r, column + 16 * k + (i >> 1) * 8), p.q.by_4) : 0;
    }
}

__global__ void __launch_bounds__(kThreads, 1) forward_wide_kernel(const Forward p) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* const keys = reinterpret_cast<bf16*>(shared);
  bf16* const values = keys + kKeyElements;
  float4* const totals = reinterpret_cast<float4*>(values + kValueElements) + threadIdx.x;

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int half = blockIdx.x & 1, first_column = half * kHalfColumns;
  const int index = blockIdx.x / 2, head = index % p.heads, kv_head = head / (p.heads / p.kv_heads);
  const QueryTile tile = p.sequences.tiles[index / p.heads];
  const DeviceSequence sequence = p.sequences.sequences[tile.sequence];
  const int first_row = tile.first + warp * 16;  // position of this warp's first row in the sequence
  const int64_t row = int64_t{sequence.row_begin} + first_row;
  const int present = sequence.rows - first_row;

  const int first_position = sequence.first_position + tile.first;
  const int end = sequence.first_position + min(tile.first + kTileRows, sequence.rows);
  const int first_block = (p.window ? max(0, first_position - p.window + 1) : 0) / kKeyBlock;
  const int last_block = (end - 1) / kKeyBlock;

  WarpRows<kHalfColumns> rows;
  place_rows(rows, sequence.first_position + first_row, p.window, lane);
  const int head_elements = static_cast<int>(kKvBlock) * p.head_dim, tile_row = 16 * warp;
  const KvPlace place{.blocks = p.sequences.blocks + sequence.block_begin,
                      .offset = p.kv_offset + int64_t{kv_head} * head_elements,
                      .value_offset = p.kv_heads * head_elements,
                      .head_dim = p.head_dim,
                      .end = end};
  const auto load_keys = [&](int block) {
    const int position = block * kKeyBlock + tile_row;
    copy_kv_block<kWideDim>(keys, tile_row, place.at(position), end - position, p.head_dim, lane, 32);
    copy_commit();
  };
  const auto load_values = [&](int block) {
    const int position = block * kKeyBlock + tile_row;
    copy_kv_columns<kHalfColumns>(values, tile_row, place.at(position) + place.value_offset, end - position, p.head_dim,
                                  first_column, lane, 32);
    copy_commit();
  };
  load_keys(first_block);
  load_values(first_block);
  uint32_t q[kWideDim / 16][4];
  load_wide_queries(q, p, row, head, present, lane);
  rows.begin_span();
  bool first_span = true;
  for (int block = first_block; block <= last_block; ++block) {
    const bool sees = present > 0 && rows.sees(block * kKeyBlock), last = block == last_block;
    copy_wait<1>();
    __syncthreads();  // the keys have arrived; the values may be in flight
    float s[8][4] = {};
    if (sees) score_block<kWideDim>(s, q, keys, lane);
    __syncthreads();  // no warp reads the keys any more
    if (!last)
      load_keys(block + 1);
    else
      copy_commit();
    if (sees) rows.softmax(s, block * kKeyBlock, p.c, lane);
    copy_wait<1>();
    __syncthreads();  // the values have arrived
    if (sees) add_weighted_rows<kHalfColumns>(rows.o, s, values, lane);
    __syncthreads();
    if (!last) load_values(block + 1);
    if (last || block % kBlocksPerSpan == kBlocksPerSpan - 1) {
      rows.end_span(totals, kThreads, first_span, last, p.c);
      first_span = false;
    }
  }
  store_rows(rows, p, row, head, present, lane, first_column);
}

}  // namespace

void launch_forward_wide(const Forward& p, Stream& stream) {
  constexpr int kTiles = (kKeyElements + kValueElements) * static_cast<int>(sizeof(bf16));
  constexpr int kTotals = kThreads * kHalfColumns / 8 * static_cast<int>(sizeof(float4));
  // No running totals are needed where no row can see two spans.
  const int totals = p.sequences.max_positions > kKeySpan ? kTotals : 0;
  allow_shared<forward_wide_kernel>(kTiles + kTotals);
  forward_wide_kernel<<<static_cast<unsigned>(2 * p.sequences.num_tiles * p.heads), kThreads,
                        static_cast<size_t>(kTiles + totals), stream_of(stream)>>>(p);
}

}  // namespace lockstep::kernels::cuda
