// Register tiles of attention: R query vectors against blocks of 16 keys or values. Every output is one chain, so the shape
// of a tile changes no bit. Included once per target.

#if defined(LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#undef LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <array>
#include <utility>

#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Accumulators of a full tile, its two loaded vectors and one broadcast fill the registers: 12 x 2 of 32, 6 x 2 of 16.
inline constexpr int kTile = kParts == 1 ? 12 : 6;

// Scores lie in blocks [block][stride / 16 vectors][16 keys]; a tile owns R of the vectors.
struct DotCall {
  const float* vectors;        // [depth][R]
  const float* const* blocks;  // each [depth][16]
  int64_t num_blocks;
  int64_t depth;
  float scale;                 // after the chain
  float* out;
  int64_t out_stride;          // floats from block to block
};

template <int R, int B>
HWY_INLINE void dot_blocks(const DotCall& call, int64_t first) {
  Row16 sums[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sums[r][b] = set16(0.0f);
  const float* block[B];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) block[b] = call.blocks[first + b];
  const float* vectors = call.vectors;
  for (int64_t d = 0; d < call.depth; ++d, vectors += R) {
    Row16 keys[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) keys[b] = load16(block[b] + d * 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec32 x = hn::Set(F32(), vectors[r]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i)
          sums[r][b].part[i] = hn::MulAdd(x, keys[b].part[i], sums[r][b].part[i]);
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
  const float* weights;        // as DotCall::out
  int64_t weight_stride;
  const float* const* blocks;  // each [16][depth], rows value_stride apart
  int64_t num_blocks;
  int64_t value_stride;
  int64_t depth;
  float* out;                  // [R], rows out_stride apart, padded to a multiple of 16
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
    for (int j = 0; j < 16; ++j, value += call.value_stride, ++weight) {
      Vec32 v[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        v[c] = kRagged ? hn::MaskedLoad(mask, F32(), value) : hn::LoadU(F32(), value + c * kLanes);
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

// Vectors v, v + 1, ... of `from` side by side: out[d * count + r].
HWY_INLINE void pack_vectors(float* out, const cpu::AttentionHead& head, const ConstTensor& from, int64_t v,
                             int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    const float* vector = from.row(head.row(v + r)) + head.column(v + r);
    for (int64_t d = 0; d < head.shape->head_dim; ++d) out[d * count + r] = vector[d];
  }
}

// Lane i is +1 where first <= key + i <= last, else -1.
HWY_INLINE Row16 visible_keys(int64_t key, int64_t first, int64_t last) {
  HWY_ALIGN float lane[16];
  for (int64_t i = 0; i < 16; ++i) lane[i] = key + i >= first && key + i <= last ? 1.0f : -1.0f;
  return load16(lane);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
