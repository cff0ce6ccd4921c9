// Attention backward, without atomics: one CTA sums each gradient in a fixed order, by tiles of 64 rows of a
// sequence. Probabilities are recomputed from the saved statistics
// (FlashAttention-2, arXiv 2307.08691, algorithm 2); P and dS are rounded to bf16 for the matmuls.
// Hopper takes attention_backward_keys_wgmma.cu with attention_backward_queries_{wgmma,scores}.cu where it can;
// attention_backward_wide.cu takes head_dim above 128.
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_wide.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ void load_8(float (&x)[8], const bf16* from, bool by_16) {
  if (by_16) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __bfloat162float(from[i]);
  }
}

// 16 lanes per row and head. attention_backward_queries_wgmma.cu does this itself.
__global__ void __launch_bounds__(kThreads) delta_kernel(const Backward p) {
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 16;
  const int64_t row = item / p.heads;
  const int head = static_cast<int>(item % p.heads), chunk = threadIdx.x & 15;
  float sum = 0;
  for (int first = 8 * chunk; row < p.rows && first < p.head_dim; first += 8 * 16) {
    float a[8], b[8];
    load_8(a, p.d_o.at(row, head * p.head_dim + first), p.d_o.by_16);
    load_8(b, p.o.at(row, head * p.head_dim + first), p.o.by_16);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (row < p.rows && chunk == 0) p.delta[row * p.delta_stride + head] = sum;
}

// The four warps copy 16 keys and 16 values each.
template <int kDim>
__device__ __forceinline__ void load_keys(bf16* keys, bf16* values, const KvPlace& place, const bf16* from,
                                          int position, int warp, int lane) {
  copy_kv_block<kDim>(keys, 16 * warp, from, place.end - position, place.head_dim, lane, 32);
  copy_kv_block<kDim>(values, 16 * warp, from + place.value_offset, place.end - position, place.head_dim, lane, 32);
}

// dS for 16 queries and a block of 64 keys.
template <int kDim>
__device__ __forceinline__ void score_gradients(float (&s)[8][4], const bf16* queries, const bf16* gradients,
                                                const bf16* keys, const bf16* values, const QueryRows& rows,
                                                int first_key, bool masked, float c, int warp, int lane) {
  float d[8][4] = {};
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4], b[4];
    load_a<kDim>(a, queries, 16 * warp, k, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      load_b_rows<kDim>(b, keys, 16 * n, k, lane);
      mma_pair(s[2 * n], s[2 * n + 1], a, b);
    }
    load_a<kDim>(a, gradients, 16 * warp, k, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      load_b_rows<kDim>(b, values, 16 * n, k, lane);
      mma_pair(d[2 * n], d[2 * n + 1], a, b);
    }
  }
  if (masked) mask_block(s, first_key, rows.low, rows.high, lane);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s[n][e] = exp2_fast(__fmaf_rn(s[n][e], c, -rows.norm[e >> 1])) * (d[n][e] - rows.delta[e >> 1]);
}

// dq for one tile and head: a sum over blocks of keys in order.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) query_kernel(const Backward p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kTile = kTileRows * kDim;
  bf16* const queries = reinterpret_cast<bf16*>(shared);
  bf16* const gradients = queries + kTile;
  bf16* const stages = gradients + kTile;  // [2][keys, values]

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const Tile tile(p, blockIdx.x / p.heads);
  const int head = blockIdx.x % p.heads, column = head * p.head_dim;
  const int rows = min(tile.sequence.rows - tile.first, kTileRows);
  const int64_t row = int64_t{tile.sequence.row_begin} + tile.first;
  const int first_query = tile.sequence.first_position + tile.first, end = first_query + rows;
  const KvPlace place = keys_of(p, tile.sequence, head / (p.heads / p.kv_heads), end);
  const int first_block = (p.window ? max(0, first_query - p.window + 1) : 0) / kKeyBlock;
  const int last_block = (end - 1) / kKeyBlock;

  int position = first_block * kKeyBlock + 16 * warp;  // the first key that this warp copies next
  const bf16* next = place.at(position);
  copy_rows<kDim>(queries, p.q, row, column, rows, p.head_dim);
  copy_rows<kDim>(gradients, p.d_o, row, column, rows, p.head_dim);
  load_keys<kDim>(stages, stages + kTile, place, next, position, warp, lane);
  copy_commit();
  next = place.at(position += kKeyBlock);
  const QueryRows own(p, row, head, rows, first_query, warp, lane);

  float dq[kDim / 8][4] = {};
  for (int block = first_block; block <= last_block; ++block) {
    copy_wait<0>();
    __syncthreads();
    const int stage = (block - first_block) & 1;
    const bf16* const keys = stages + stage * 2 * kTile;
    if (block < last_block) {
      bf16* const ahead = stages + (stage ^ 1) * 2 * kTile;
      load_keys<kDim>(ahead, ahead + kTile, place, next, position, warp, lane);
      next = place.at(position += kKeyBlock);
    }
    copy_commit();
    float s[8][4] = {};
    const bool masked = (block + 1) * kKeyBlock - 1 > first_query || p.window != 0;
    score_gradients<kDim>(s, queries, gradients, keys, keys + kTile, own, block * kKeyBlock, masked, p.c, warp, lane);
    add_weighted_rows<kDim>(dq, s, keys, lane);
  }
  store_gradient<kDim>(p.dq, dq, row + 16 * warp, column, rows - 16 * warp, p.head_dim, p.scale, lane);
}

template <int kDim>
struct KeyShared {
  bf16 keys[kKeyBlock * kDim], values[kKeyBlock * kDim];
  bf16 queries[2][kTileRows * kDim], gradients[2][kTileRows * kDim];
  float2 norm_delta[2][kTileRows];
};

// Adds what 32 queries, from row `half` of the tile on, contribute to dk and dv of 16 keys; none sees keys from end_key
// on.
template <int kDim>
__device__ __forceinline__ void add_queries(float (&dk)[kDim / 8][4], float (&dv)[kDim / 8][4],
                                            const KeyShared<kDim>& shared, int stage, int half, int first_query,
                                            int first_key, int end_key, int warp, int window, float c, int lane) {
  const bf16* const queries = shared.queries[stage];
  const bf16* const gradients = shared.gradients[stage];
  float s[4][4] = {}, d[4][4] = {};  // transposed: 16 keys, 32 queries
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4], b[4];
    load_a<kDim>(a, shared.keys, 16 * warp, k, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b_rows<kDim>(b, queries, half + 16 * n, k, lane);
      mma_pair(s[2 * n], s[2 * n + 1], a, b);
    }
    load_a<kDim>(a, shared.values, 16 * warp, k, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b_rows<kDim>(b, gradients, half + 16 * n, k, lane);
      mma_pair(d[2 * n], d[2 * n + 1], a, b);
    }
  }
  const int last_key = first_key + 15, last_query = first_query + 31;
  const bool all = last_key <= first_query && last_key < end_key && (window == 0 || first_key > last_query - window);
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * n + 2 * (lane & 3) + (e & 1), query = first_query + i;
      const int key = first_key + lane / 4 + 8 * (e >> 1);
      const float2 norm_delta = shared.norm_delta[stage][half + i];
      float probability = exp2_fast(__fmaf_rn(s[n][e], c, -norm_delta.x));
      if (!all && (key > query || key >= end_key || (window != 0 && key <= query - window))) probability = 0;
      s[n][e] = probability;
      d[n][e] = probability * (d[n][e] - norm_delta.y);
    }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t a[4], ds[4], b[4];
    pack_a(a, s[2 * k], s[2 * k + 1]);
    pack_a(ds, d[2 * k], d[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      load_b_columns<kDim>(b, gradients, half + 16 * k, n, lane);
      mma_pair(dv[2 * n], dv[2 * n + 1], a, b);
      load_b_columns<kDim>(b, queries, half + 16 * k, n, lane);
      mma_pair(dk[2 * n], dk[2 * n + 1], ds, b);
    }
  }
}

// dk and dv for one tile of keys and one kv head: summed over the sequences that see them, the heads of the group, then
// tiles of queries, in order.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) key_kernel(const Backward p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared<kDim>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  // Tiles are listed with the most keys first. Read from the end, the list starts with the keys that most queries see.
  const Tile tile(p, static_cast<int>(p.num_tiles) - 1 - blockIdx.x / p.kv_heads);
  const int kv_head = blockIdx.x % p.kv_heads, present = min(tile.sequence.rows - tile.first, kKeyBlock);
  using Queries = QueryTiles<kTileRows>;
  Queries tiles(p, tile, tile.first, present, kv_head);
  QueryStats next;  // statistics of this thread's row in the tile that is being loaded
  const auto load = [&](const Queries& at, int stage) {
    const int64_t row = int64_t{at.row_begin} + at.first();
    const int column = at.head * p.head_dim, rows = at.rows - at.first();
    copy_rows<kDim>(shared.queries[stage], p.q, row, column, rows, p.head_dim);
    copy_rows<kDim>(shared.gradients[stage], p.d_o, row, column, rows, p.head_dim);
    const int own = static_cast<int>(threadIdx.x);
    next = own < kTileRows && own < rows ? QueryStats(p, row + own, at.head) : QueryStats();
  };
  const auto publish = [&](int stage) {
    if (threadIdx.x < kTileRows) shared.norm_delta[stage][threadIdx.x] = make_float2(next.log2_norm(), next.delta);
  };

  const int first_position = tile.sequence.first_position + tile.first, position = first_position + 16 * warp;
  const KvPlace place = keys_of(p, tile.sequence, kv_head, first_position + present);
  load_keys<kDim>(shared.keys, shared.values, place, place.at(position), position, warp, lane);
  load(tiles, 0);
  copy_commit();
  publish(0);

  const int own_key = tile.first + 16 * warp;  // the warp's first key, as a row of its sequence
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  for (int stage = 0; !tiles.done(); stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    const int first_query = tiles.position(), end_key = tiles.end_key();
    tiles.advance(p);
    if (!tiles.done()) load(tiles, stage ^ 1);
    copy_commit();
#pragma unroll 1
    for (int half = 0; half < kTileRows; half += 32)
      if (first_query + half + 31 >= own_key &&
          own_key < end_key)  // otherwise no query of the half sees a key of the warp
        add_queries<kDim>(dk, dv, shared, stage, half, first_query + half, own_key, end_key, warp, p.window, p.c, lane);
    publish(stage ^ 1);
  }
  const int64_t row = int64_t{tile.sequence.row_begin} + own_key;
  const int column = kv_head * p.head_dim;
  store_gradient<kDim>(p.dk, dk, row, column, present - 16 * warp, p.head_dim, p.scale, lane);
  store_gradient<kDim>(p.dv, dv, row, column, present - 16 * warp, p.head_dim, 1.0f, lane);
}

}  // namespace

void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionScratch& scratch, const AttentionShape& shape,
                        const DeviceSequences& sequences, Stream& stream) {
  constexpr const char* kOp = "attention_backward";
  if (q.shape[0] == 0) return;
  Backward arguments{.dq = head_rows<bf16>(dq),
                     .dk = head_rows<bf16>(dk),
                     .dv = head_rows<bf16>(dv),
                     .d_o = head_rows<const bf16>(d_o),
                     .q = head_rows<const bf16>(q),
                     .o = head_rows<const bf16>(o),
                     .stats = data_of<float>(stats),
                     .stats_stride = stats.row_stride,
                     .delta = data_of<float>(scratch.dots),
                     .delta_stride = scratch.dots.row_stride,
                     .heads = static_cast<int>(shape.heads),
                     .kv_heads = static_cast<int>(shape.kv_heads),
                     .head_dim = static_cast<int>(shape.head_dim),
                     .window = static_cast<int>(shape.window),
                     .rows = q.shape[0],
                     .kv_offset = shape.kv_offset,
                     .scale = shape.scale,
                     .c = log2_scale(shape),
                     .sequences = sequences,
                     .num_tiles = sequences.tiles ? sequences.num_tiles : sequences.num_sequences};
  const cudaStream_t on = stream_of(stream);
  const int64_t num_tiles = arguments.num_tiles;
  const auto blocks = [](int64_t count) { return static_cast<unsigned>(count); };
  const bool wgmma = takes_wgmma(arguments);
  if (wgmma && keeps_score_gradients(arguments, scratch.score_gradients))
    arguments.score_gradients = data_of<bf16>(scratch.score_gradients);
  if (wgmma) arguments.counters = library_of(stream).attention_counters();
  if (wgmma && !arguments.score_gradients) {
    launch_query_gradients_wgmma(arguments, stream);
    launch_key_gradients_wgmma(arguments, stream);
    return check_launch(kOp, {q});
  }
  delta_kernel<<<blocks((q.shape[0] * shape.heads * 16 + kThreads - 1) / kThreads), kThreads, 0, on>>>(arguments);
  check_launch(kOp, {q});
  if (wgmma) {
    launch_key_gradients_wgmma(arguments, stream);
    launch_query_gradients_from_scores(arguments, stream);
    return check_launch(kOp, {q});
  }
  if (is_wide(shape.head_dim)) {
    launch_backward_wide(arguments, stream);
    return check_launch(kOp, {q});
  }
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    constexpr int kQueryBytes = 6 * kTileRows * kDim * static_cast<int>(sizeof(bf16));
    allow_shared<query_kernel<kDim>>(kQueryBytes);
    query_kernel<kDim><<<blocks(num_tiles * shape.heads), kThreads, kQueryBytes, on>>>(arguments);
    allow_shared<key_kernel<kDim>>(sizeof(KeyShared<kDim>));
    key_kernel<kDim><<<blocks(num_tiles * shape.kv_heads), kThreads, sizeof(KeyShared<kDim>), on>>>(arguments);
  });
  check_launch(kOp, {q});
}

}  // namespace lockstep::kernels::cuda
