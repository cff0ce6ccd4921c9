// Attention backward for head_dim 144 .. 256: the formulas and the order of sums of attention_backward.cu, with tiles
// of 32 rows rather than 64 on both sides. Four warps: two groups of 16 rows, and two halves of the gradient's columns
// for each. Both warps of a group compute the same scores.
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_wide.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128, kParts = kTileRows / kSmallTileRows;  // CTAs per tile and head
constexpr int kTile = kSmallTileRows * kWideDim;
using Accumulator = float[kHalfColumns / 8][4];

// The probabilities' and scores' matmuls of 16 rows (at `row` of a, c) with the 32 rows of b, d: s = a b^T, t = c d^T.
__device__ __forceinline__ void multiply_pairs(float (&s)[4][4], float (&t)[4][4], const bf16* a, const bf16* b,
                                               const bf16* c, const bf16* d, int row, int lane) {
#pragma unroll
  for (int k = 0; k < kWideDim / 16; ++k) {
    uint32_t x[4], y[4];
    load_a<kWideDim>(x, a, row, k, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b_rows<kWideDim>(y, b, 16 * n, k, lane);
      mma_pair(s[2 * n], s[2 * n + 1], x, y);
    }
    load_a<kWideDim>(x, c, row, k, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b_rows<kWideDim>(y, d, 16 * n, k, lane);
      mma_pair(t[2 * n], t[2 * n + 1], x, y);
    }
  }
}

// sum += bf16(weights) * the 32 rows of the tile, in columns 128 half .. + 127.
__device__ __forceinline__ void add_half(Accumulator& sum, const float (&weights)[4][4], const bf16* tile, int half,
                                         int lane) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t a[4], b[4];
    pack_a(a, weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kHalfColumns / 16; ++n) {
      load_b_columns<kWideDim>(b, tile, 16 * k, half * (kHalfColumns / 16) + n, lane);
      mma_pair(sum[2 * n], sum[2 * n + 1], a, b);
    }
  }
}

// Copies 32 keys and their values from `position` on; each warp copies 16 rows of one of them.
__device__ __forceinline__ void load_small_keys(bf16* keys, bf16* values, const KvPlace& place, int position, int warp,
                                                int lane) {
  const int row = 16 * (warp & 1), first = position + row;
  copy_kv_block<kWideDim>(warp < 2 ? keys : values, row, place.at(first) + (warp < 2 ? 0 : place.value_offset),
                          place.end - first, place.head_dim, lane, 32);
}

struct QueryShared {
  bf16 queries[kTile], gradients[kTile];
  bf16 keys[2][kTile], values[2][kTile];
};

// dq for 32 rows and a head: a sum over keys in order.
__global__ void __launch_bounds__(kThreads, 1) query_wide_kernel(const Backward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueryShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, own = 16 * (warp & 1), half = warp >> 1;
  const int head = blockIdx.x % p.heads, index = blockIdx.x / p.heads, column = head * p.head_dim;
  const Tile tile(p, index / kParts);
  const int first = tile.first + index % kParts * kSmallTileRows;
  const int rows = min(tile.sequence.rows - first, kSmallTileRows);
  if (rows <= 0) return;
  const int64_t row = int64_t{tile.sequence.row_begin} + first;
  const int first_query = tile.sequence.first_position + first, end = first_query + rows;
  const KvPlace place = keys_of(p, tile.sequence, head / (p.heads / p.kv_heads), end);
  const int first_step = (p.window ? max(0, first_query - p.window + 1) : 0) / kSmallTileRows;
  const int last_step = (end - 1) / kSmallTileRows;

  copy_rows<kWideDim, kSmallTileRows>(shared.queries, p.q, row, column, rows, p.head_dim);
  copy_rows<kWideDim, kSmallTileRows>(shared.gradients, p.d_o, row, column, rows, p.head_dim);
  load_small_keys(shared.keys[0], shared.values[0], place, first_step * kSmallTileRows, warp, lane);
  copy_commit();
  const QueryRows mine(p, row, head, rows, first_query, warp & 1, lane);

  Accumulator dq = {};
  for (int step = first_step; step <= last_step; ++step) {
    copy_wait<0>();
    __syncthreads();
    const int stage = (step - first_step) & 1, first_key = step * kSmallTileRows;
    if (step < last_step)
      load_small_keys(shared.keys[stage ^ 1], shared.values[stage ^ 1], place, first_key + kSmallTileRows, warp, lane);
    copy_commit();
    float s[4][4] = {}, d[4][4] = {};
    multiply_pairs(s, d, shared.queries, shared.keys[stage], shared.gradients, shared.values[stage], own, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + 8 * n + 2 * (lane & 3) + (e & 1), h = e >> 1;
        const bool seen = key >= mine.low[h] && key <= mine.high[h];
        const float probability = seen ? exp2_fast(__fmaf_rn(s[n][e], p.c, -mine.norm[h])) : 0.0f;
        s[n][e] = probability * (d[n][e] - mine.delta[h]);
      }
    add_half(dq, s, shared.keys[stage], half, lane);
  }
  store_gradient<kHalfColumns>(p.dq, dq, row + own, column + half * kHalfColumns, rows - own,
                               p.head_dim - half * kHalfColumns, p.scale, lane);
}

struct KeyShared {
  bf16 keys[kTile], values[kTile];
  bf16 queries[2][kTile], gradients[2][kTile];
  float2 norm_delta[2][kSmallTileRows];
};

// dk and dv for 32 keys and one kv head: summed over the sequences that see them, the heads of the group, then queries,
// in order.
__global__ void __launch_bounds__(kThreads, 1) key_wide_kernel(const Backward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, own = 16 * (warp & 1), half = warp >> 1;
  const int kv_head = blockIdx.x % p.kv_heads, index = blockIdx.x / p.kv_heads;
  // Tiles are listed with the most keys first. Read from the end, the list starts with the keys that most queries see.
  const Tile tile(p, static_cast<int>(p.num_tiles) - 1 - index / kParts);
  const int first = tile.first + index % kParts * kSmallTileRows;
  const int present = min(tile.sequence.rows - first, kSmallTileRows);
  if (present <= 0) return;
  using Queries = QueryTiles<kSmallTileRows>;
  Queries tiles(p, tile, first, present, kv_head);
  QueryStats next;  // statistics of this thread's row in the tile that is being loaded
  const auto load = [&](const Queries& at, int stage) {
    const int64_t row = int64_t{at.row_begin} + at.first();
    const int column = at.head * p.head_dim, rows = at.rows - at.first(), mine = static_cast<int>(threadIdx.x);
    copy_rows<kWideDim, kSmallTileRows>(shared.queries[stage], p.q, row, column, rows, p.head_dim);
    copy_rows<kWideDim, kSmallTileRows>(shared.gradients[stage], p.d_o, row, column, rows, p.head_dim);
    next = mine < kSmallTileRows && mine < rows ? QueryStats(p, row + mine, at.head) : QueryStats();
  };
  const auto publish = [&](int stage) {
    if (threadIdx.x < kSmallTileRows) shared.norm_delta[stage][threadIdx.x] = make_float2(next.log2_norm(), next.delta);
  };

  const int first_position = tile.sequence.first_position + first;
  const KvPlace place = keys_of(p, tile.sequence, kv_head, first_position + present);
  load_small_keys(shared.keys, shared.values, place, first_position, warp, lane);
  load(tiles, 0);
  copy_commit();
  publish(0);

  Accumulator dk = {}, dv = {};
  for (int stage = 0; !tiles.done(); stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    const int first_query = tiles.position(), end_key = tiles.end_key();
    tiles.advance(p);
    if (!tiles.done()) load(tiles, stage ^ 1);
    copy_commit();
    float s[4][4] = {}, d[4][4] = {};  // transposed: 16 keys, 32 queries
    multiply_pairs(s, d, shared.keys, shared.queries[stage], shared.values, shared.gradients[stage], own, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 8 * n + 2 * (lane & 3) + (e & 1), query = first_query + i;
        const int key = first + own + lane / 4 + 8 * (e >> 1);
        const float2 norm_delta = shared.norm_delta[stage][i];
        const bool seen = key <= query && key < end_key && (p.window == 0 || key > query - p.window);
        const float probability = seen ? exp2_fast(__fmaf_rn(s[n][e], p.c, -norm_delta.x)) : 0.0f;
        s[n][e] = probability;
        d[n][e] = probability * (d[n][e] - norm_delta.y);
      }
    add_half(dv, s, shared.gradients[stage], half, lane);
    add_half(dk, d, shared.queries[stage], half, lane);
    publish(stage ^ 1);
  }
  const int64_t row = int64_t{tile.sequence.row_begin} + first + own;
  const int column = kv_head * p.head_dim + half * kHalfColumns, columns = p.head_dim - half * kHalfColumns;
  store_gradient<kHalfColumns>(p.dk, dk, row, column, present - own, columns, p.scale, lane);
  store_gradient<kHalfColumns>(p.dv, dv, row, column, present - own, columns, 1.0f, lane);
}

}  // namespace

void launch_backward_wide(const Backward& p, Stream& stream) {
  const cudaStream_t on = stream_of(stream);
  const int64_t tiles = p.num_tiles * kParts;
  allow_shared<query_wide_kernel>(sizeof(QueryShared));
  query_wide_kernel<<<static_cast<unsigned>(tiles * p.heads), kThreads, sizeof(QueryShared), on>>>(p);
  allow_shared<key_wide_kernel>(sizeof(KeyShared));
  key_wide_kernel<<<static_cast<unsigned>(tiles * p.kv_heads), kThreads, sizeof(KeyShared), on>>>(p);
}

}  // namespace lockstep::kernels::cuda
