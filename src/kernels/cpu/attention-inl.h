// Register tiles of attention: R query vectors against blocks of 16 keys or values. Every output is one chain, so the
// shape of a tile changes no bit. In decoding each block comes from memory once, so what is read kBlocksAhead blocks
// later is fetched meanwhile. Included once per target.

#if defined(LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#undef LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Accumulators of a full tile, its two loaded vectors and one broadcast fill the registers: 12 x 2 of 32, 6 x 2 of 16.
inline constexpr int kTile = kParts == 1 ? 12 : 6;

// As long as a block takes from memory to the core, four pass through it. It goes to the second cache: the first can
// wait for only about 20 lines at a time, which halves the speed.
inline constexpr int64_t kBlocksAhead = 4;
template <class T>
HWY_INLINE void fetch_ahead(const T* p) {
  __builtin_prefetch(p, 0, 2);
}

// The vectors of a tile in fours: [vector / 4][padded depth][vector % 4].
inline constexpr int64_t tile_floats(int64_t padded) {
  return (kTile + 3) / 4 * 4 * padded;
}

// Scores lie in blocks [block][stride / 16 vectors][16 keys]; a tile owns R of the vectors.
struct DotCall {
  const float* vectors;        // R of them, packed as tile_floats says
  const float* const* blocks;  // each [depth][16]
  int64_t num_blocks;
  int64_t known_blocks;  // those from num_blocks on are what will be read next, of whatever kind
  int64_t depth, padded;
  float scale;  // after the chain
  float* out;
  int64_t out_stride;  // floats from block to block
};

template <int R, int B>
HWY_INLINE void dot_blocks(const DotCall& call, int64_t first) {
  Row16 sums[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sums[r][b] = set16(0.0f);
  const float *block[B], *next[B];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) {
    block[b] = call.blocks[first + b];
    next[b] = call.blocks[std::min(first + b + kBlocksAhead, call.known_blocks - 1)];
  }
  constexpr int kFours = (R + 3) / 4;
  const float* vectors[kFours];
#pragma GCC unroll 4
  for (int f = 0; f < kFours; ++f) vectors[f] = call.vectors + f * 4 * call.padded;
  for (int64_t d = 0; d < call.depth; ++d) {
    Row16 keys[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      keys[b] = load16(block[b] + d * 16);
      fetch_ahead(next[b] + d * 16);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec32 x = hn::Set(F32(), vectors[r / 4][d * 4 + r % 4]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i) sums[r][b].part[i] = hn::MulAdd(x, keys[b].part[i], sums[r][b].part[i]);
    }
  }
  const Row16 scale = set16(call.scale);
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store16(mul(sums[r][b], scale), call.out + (first + b) * call.out_stride + r * 16);
}

template <int R>
void dot_tile(const DotCall& call) {
  constexpr int kFew = 2 * R <= kTile ? 4 / kParts : 2 / kParts;  // few vectors: more blocks side by side
  constexpr int B = kFew < 1 ? 1 : kFew;
  int64_t b = 0;
  for (; b + B <= call.num_blocks; b += B) dot_blocks<R, B>(call, b);
  for (; b < call.num_blocks; ++b) dot_blocks<R, 1>(call, b);
}

// out[r][d] continues its chain: + sum over keys in order of weights[r][key] * values[key][d]
struct WeightedSumCall {
  const float* weights;  // as DotCall::out
  int64_t weight_stride;
  const float* const* blocks;  // each [16][depth], rows value_stride apart
  int64_t num_blocks;
  int64_t known_blocks;  // as DotCall's
  int64_t value_stride;
  int64_t depth;
  float* out;  // [R], rows out_stride apart, padded to a multiple of 16
  int64_t out_stride;
};

// C vectors of columns from `column`; the last of them has only `valid` lanes when kRagged.
template <int R, int C, bool kRagged>
HWY_INLINE void sum_columns(const WeightedSumCall& call, int64_t column) {
  const Mask32 mask = hn::FirstN(F32(), static_cast<size_t>(call.depth - column));
  Vec32 sums[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = hn::LoadU(F32(), call.out + r * call.out_stride + column + c * kLanes);
  for (int64_t b = 0; b < call.num_blocks; ++b) {
    const float* value = call.blocks[b] + column;
    const float* weight = call.weights + b * call.weight_stride;
    const int64_t next = call.blocks[std::min(b + kBlocksAhead, call.known_blocks - 1)] - call.blocks[b];
    for (int j = 0; j < 16; ++j, value += call.value_stride, ++weight) {
      Vec32 v[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        v[c] = kRagged ? hn::MaskedLoad(mask, F32(), value) : hn::LoadU(F32(), value + c * kLanes);
        fetch_ahead(value + next + c * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vec32 w = hn::Set(F32(), weight[r * 16]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[r][c] = hn::MulAdd(w, v[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) hn::StoreU(sums[r][c], F32(), call.out + r * call.out_stride + column + c * kLanes);
}

template <int R>
void weighted_sum_tile(const WeightedSumCall& call) {
  constexpr int C = 2 * R <= kTile ? 4 : 2;
  int64_t column = 0;
  for (; column + C * kLanes <= call.depth; column += C * kLanes) sum_columns<R, C, false>(call, column);
  for (; column + kLanes <= call.depth; column += kLanes) sum_columns<R, 1, false>(call, column);
  if (column < call.depth) sum_columns<R, 1, true>(call, column);
}

// Entry R - 1 handles R vectors.
using DotTile = void (*)(const DotCall&);
using WeightedSumTile = void (*)(const WeightedSumCall&);
template <int... I>
constexpr std::array<DotTile, kTile> dot_tile_table(std::integer_sequence<int, I...>) {
  return {&dot_tile<I + 1>...};
}
template <int... I>
constexpr std::array<WeightedSumTile, kTile> weighted_sum_table(std::integer_sequence<int, I...>) {
  return {&weighted_sum_tile<I + 1>...};
}
inline constexpr auto kDotTile = dot_tile_table(std::make_integer_sequence<int, kTile>());
inline constexpr auto kWeightedSumTile = weighted_sum_table(std::make_integer_sequence<int, kTile>());

// Where a query vector lies.
struct Place {
  int64_t position, first_key, row, column, head;
};

HWY_INLINE void find_places(const cpu::AttentionHead& head, int64_t v, int64_t count, Place* places) {
  const int64_t group = head.group(), head_dim = head.shape->head_dim, window = head.shape->window;
  int64_t row = v / group, in_group = v % group;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t position = head.sequence->first_position + row, q_head = head.kv_head * group + in_group;
    places[r] = {position, window > 0 ? std::max<int64_t>(0, position - window + 1) : 0, head.sequence->row_begin + row,
                 q_head * head_dim, q_head};
    if (++in_group == group) in_group = 0, ++row;
  }
}

// The tile of `count` vectors of `from` at `places`, packed as tile_floats says; lanes beyond head_dim are 0.
HWY_INLINE void pack_vectors(float* out, const ConstTensor& from, const Place* places, int64_t count,
                             int64_t head_dim) {
  const float* const base = static_cast<const float*>(from.data);
  const int64_t padded = (head_dim + 15) / 16 * 16;
  for (int64_t r = 0; r < count; r += 4, out += 4 * padded) {
    const float* vector[4];
    for (int64_t i = 0; i < 4; ++i) {
      const Place& place = places[std::min(r + i, count - 1)];
      vector[i] = base + place.row * from.row_stride + place.column;
    }
    for_row16(head_dim, [&](int64_t d, auto lanes) {
      const Row16 a = lanes.load(vector[0] + d), b = lanes.load(vector[1] + d), c = lanes.load(vector[2] + d),
                  e = lanes.load(vector[3] + d);
      for (int i = 0; i < kParts; ++i)
        hn::StoreInterleaved4(a.part[i], b.part[i], c.part[i], e.part[i], F32(), out + (d + i * kLanes) * 4);
    });
  }
}

// x in the lanes i of a block with first <= i <= last (either may lie outside 0 .. 15), `other` in the rest.
HWY_INLINE Row16 keep_visible(Row16 x, float other, int64_t first, int64_t last) {
  const Vec32 low = hn::Set(F32(), static_cast<float>(first)), high = hn::Set(F32(), static_cast<float>(last));
  for (int i = 0; i < kParts; ++i) {
    const Vec32 lane = hn::Iota(F32(), static_cast<float>(i * kLanes));
    const Mask32 visible = hn::And(hn::Ge(lane, low), hn::Le(lane, high));
    x.part[i] = hn::IfThenElse(visible, x.part[i], hn::Set(F32(), other));
  }
  return x;
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
