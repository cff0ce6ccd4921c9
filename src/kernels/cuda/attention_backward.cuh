// Types and functions that the attention backward kernels share.
#pragma once

#include <climits>

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

inline constexpr float kLog2e = 1.44269504f;
inline constexpr int kScoreElements = kTileRows * kKeyBlock;  // of a score tile

// The tiles of keys ahead of a sequence's own.
__device__ __forceinline__ int tiles_ahead(int first_position) {
  return (first_position + kKeyBlock - 1) / kKeyBlock;
}

struct Backward {
  HeadRows<bf16> dq, dk, dv;
  HeadRows<const bf16> d_o, q, o;
  const float* stats;
  int64_t stats_stride;
  float* delta;  // do . o
  int64_t delta_stride;
  int heads, kv_heads, head_dim, window;
  int64_t rows, kv_offset;
  float scale, c;
  DeviceSequences sequences;
  int64_t num_tiles;             // without a list of tiles every sequence has one row and is one tile
  uint32_t* counters = nullptr;  // of CountedIndices
  // dS of the score tiles (DeviceSequences::score_tiles), [heads, num_score_tiles] as store_score_gradients has them,
  // or nullptr: the keys' kernel stores them, and the queries' reads them.
  bf16* score_gradients = nullptr;

  __device__ bf16* score_gradients_of(int head, int score_tile) const {
    return score_gradients + (head * sequences.num_score_tiles + score_tile) * kScoreElements;
  }
};

// The saved statistics of a query row, from which its probabilities are recomputed.
struct QueryStats {
  float max = 0, sum = 1, delta = 0;  // the values of a row that does not exist

  __device__ QueryStats() {}
  __device__ QueryStats(const Backward& p, int64_t row, int head) {
    const float* stats = p.stats + row * p.stats_stride + 2 * head;
    max = stats[0], sum = stats[1], delta = p.delta[row * p.delta_stride + head];
  }
  // p = exp2(fma(S, c, -log2_norm))
  __device__ float log2_norm() const { return fmaf(max, kLog2e, __log2f(sum)); }
};

// Where the keys of one head of a sequence lie, up to position `end`.
__device__ inline KvPlace keys_of(const Backward& p, const DeviceSequence& sequence, int kv_head, int end) {
  const int head_elements = static_cast<int>(kKvBlock) * p.head_dim;
  return {.blocks = p.sequences.blocks + sequence.block_begin,
          .offset = p.kv_offset + int64_t{kv_head} * head_elements,
          .value_offset = p.kv_heads * head_elements,
          .head_dim = p.head_dim,
          .end = end};
}

// One tile and the sequence that it belongs to; its 64 rows are queries or keys.
struct Tile {
  DeviceSequence sequence;
  int index;  // of the sequence
  int first;  // its first row in the sequence
  __device__ Tile(const Backward& p, int index)
      : Tile(p, p.sequences.tiles ? p.sequences.tiles[index] : QueryTile{index, 0}) {}
  __device__ Tile(const Backward& p, const QueryTile& tile)
      : sequence(p.sequences.sequences[tile.sequence]), index(tile.sequence), first(tile.first) {}
};

// The two query rows that a lane holds.
struct QueryRows {
  float norm[2], delta[2];
  int low[2], high[2];  // visible keys

  __device__ QueryRows(const Backward& p, int64_t tile_row, int head, int rows, int position, int warp, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = 16 * warp + lane / 4 + 8 * h;
      const QueryStats stats = r < rows ? QueryStats(p, tile_row + r, head) : QueryStats();
      norm[h] = stats.log2_norm(), delta[h] = stats.delta;
      high[h] = position + r, low[h] = p.window ? max(0, high[h] - p.window + 1) : 0;
    }
  }
};

// Stores 16 rows of a gradient, multiplied by `factor`.
template <int kDim>
__device__ __forceinline__ void store_gradient(const HeadRows<bf16>& to, const float (&x)[kDim / 8][4], int64_t row,
                                               int column, int present, int head_dim, float factor, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= present) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      if (8 * n < head_dim)
        store_pair(to.at(row + r, column + 8 * n + 2 * (lane & 3)), to.by_4, x[n][2 * h] * factor,
                   x[n][2 * h + 1] * factor);
  }
}

// The tiles of queries that see a tile of keys: those of the keys' own sequence, then of the sequences that follow it;
// within a sequence repeated for each head of the group. kTile: rows of a tile.
template <int kTile>
class QueryTiles {
 public:
  int head, tile;
  int row_begin, rows;  // of the sequence
  // How far its first query is from the first row of the keys' sequence: 0 in that itself, and otherwise also the
  // number of that sequence's keys that it sees.
  int shift;

  QueryTiles() = default;
  // The queries that see keys `first` .. `first + present - 1` of a sequence.
  __device__ QueryTiles(const Backward& p, const Tile& keys, int first, int present, int kv_head)
      : row_begin(keys.sequence.row_begin),
        rows(keys.sequence.rows),
        shift(0),
        index_(keys.index),
        last_index_(keys.index),
        first_head_(kv_head * (p.heads / p.kv_heads)),
        last_head_(first_head_ + p.heads / p.kv_heads - 1),
        reach_(p.window ? first + present - 1 + p.window - 1 : INT_MAX) {
    if (const int followers = p.sequences.followers ? p.sequences.followers[index_] : 0; followers > 0) {
      const int shared = p.sequences.sequences[index_ + 1].first_position;  // the same for all of them
      if (first < shared && shared <= reach_) last_index_ += followers;
    }
    begin(first / kTile);
    find_score_tiles(p, keys.sequence.first_position);
    score_tiles_ += ahead_;
  }

  __device__ int first() const { return tile * kTile; }  // row of the tile in its sequence
  __device__ int position() const { return shift + first(); }
  __device__ int end_key() const { return shift ? shift : INT_MAX; }  // keys from here on are not seen
  // Of this tile of queries and the first of the keys' sequence's own tiles; only where dS is stored.
  __device__ int score_tile() const { return score_tiles_ + tile * ahead_ + tile * (tile + 1) / 2; }
  __device__ bool last() const { return tile == last_tile_ && head == last_head_ && index_ == last_index_; }
  __device__ bool done() const { return index_ > last_index_; }
  __device__ void advance(const Backward& p) {
    if (tile < last_tile_) {
      ++tile;
    } else if (head < last_head_) {
      ++head, tile = first_tile_;
    } else if (++index_ <= last_index_) {
      const DeviceSequence next = p.sequences.sequences[index_];
      row_begin = next.row_begin, rows = next.rows, shift = next.first_position;
      begin(0);
      find_score_tiles(p, shift);
    }
  }

 private:
  __device__ void find_score_tiles(const Backward& p, int first_position) {
    if (!p.score_gradients) return;
    score_tiles_ = static_cast<int>(p.sequences.score_tiles[index_]);
    ahead_ = tiles_ahead(first_position);
  }
  __device__ void begin(int first_tile) {
    head = first_head_, tile = first_tile_ = first_tile;
    last_tile_ = min(rows - 1, reach_ - shift) / kTile;
  }

  int index_, last_index_;  // of the sequence, and of the last one that sees the keys
  int first_head_, last_head_, first_tile_, last_tile_;
  int reach_;                        // the last row, counted as keys are, that sees one of them
  int score_tiles_ = 0, ahead_ = 0;  // what score_tile() begins with; tiles of keys ahead of the queries' sequence
};

// On Hopper, for head_dim 64 and 128 and rows at multiples of 16 bytes. Either attention_backward_queries_wgmma.cu (dq,
// p.delta), then attention_backward_keys_wgmma.cu (dk, dv); or, where there is memory for dS, the latter first, which
// reads p.delta, then attention_backward_queries_scores.cu (dq).
bool takes_wgmma(const Backward& p);
bool keeps_score_gradients(const Backward& p, const Tensor& memory);
void launch_query_gradients_wgmma(const Backward& p, Stream& stream);
void launch_key_gradients_wgmma(const Backward& p, Stream& stream);
void launch_query_gradients_from_scores(const Backward& p, Stream& stream);

}  // namespace lockstep::kernels::cuda
