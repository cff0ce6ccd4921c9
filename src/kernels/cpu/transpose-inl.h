// Transposing 32-bit words into a strip: rows of the source become columns of the destination. A word is an f32 or a
// pair of bf16.

#include <cstddef>
#include <cstdint>

#if defined(LOCKSTEP_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_TRANSPOSE_INL_H_
#undef LOCKSTEP_KERNELS_TRANSPOSE_INL_H_
#else
#define LOCKSTEP_KERNELS_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

using Words = hn::Vec<LanesU32>;

// Words [0, 4) of rows i, i + 4, i + 8, ... one 128-bit block each; row q at `from` + (q < rows ? q : 0) * stride.
HWY_INLINE Words quarter_rows(const uint32_t* from, size_t stride, int i, int rows) {
  const hn::Full128<uint32_t> d128;
  const auto row = [&](int q) HWY_ATTR { return hn::LoadU(d128, from + (q < rows ? q : 0) * stride); };
#if HWY_TARGET <= HWY_AVX3
  const hn::CappedTag<uint32_t, 8> d256;
  return hn::Combine(LanesU32(), hn::Combine(d256, row(i + 12), row(i + 8)), hn::Combine(d256, row(i + 4), row(i)));
#elif HWY_TARGET <= HWY_SSSE3
  return hn::Combine(LanesU32(), row(i + 4), row(i));
#else
  return row(i);
#endif
}

// Four columns of kLanes rows: out[w] holds word w of every row, in order of rows.
HWY_INLINE void transpose_quad(const uint32_t* from, size_t stride, int rows, Words (&out)[4]) {
  const LanesU32 d;
  const hn::Repartition<uint64_t, LanesU32> d64;
  const Words r0 = quarter_rows(from, stride, 0, rows), r1 = quarter_rows(from, stride, 1, rows);
  const Words r2 = quarter_rows(from, stride, 2, rows), r3 = quarter_rows(from, stride, 3, rows);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  out[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  out[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

// to[w * kStrip + q] = from[q * stride + w] for q < kStrip, w < words. Columns q >= rows repeat row 0, so that nothing
// outside the source is read; the caller ignores them.
inline void transpose_words(const float* from, size_t stride, int rows, size_t words, float* to) {
  const auto* source = reinterpret_cast<const uint32_t*>(from);
  auto* target = reinterpret_cast<uint32_t*>(to);
  const size_t quads = words / 4 * 4;
  for (int lane = 0; lane < kStrip; lane += kLanes) {
    const uint32_t* const block = source + (lane < rows ? lane : 0) * stride;
    for (size_t w = 0; w < quads; w += 4) {
      Words out[4];
      transpose_quad(block + w, stride, rows - lane, out);
      for (int i = 0; i < 4; ++i) hn::StoreU(out[i], LanesU32(), target + (w + i) * kStrip + lane);
    }
  }
  for (size_t w = quads; w < words; ++w)
    for (int q = 0; q < kStrip; ++q) target[w * kStrip + q] = source[(q < rows ? q : 0) * stride + w];
}

// The same for rows of bf16: `pairs` words of two, and the destination has a row for each half, widened to f32.
inline void transpose_bf16(const uint16_t* from, size_t stride, int rows, size_t pairs, float* to) {
  const auto* source = reinterpret_cast<const uint32_t*>(from);
  const auto high = hn::Set(LanesU32(), 0xffff0000u);
  for (int lane = 0; lane < kStrip; lane += kLanes) {
    const uint32_t* const block = source + (lane < rows ? lane : 0) * (stride / 2);
    for (size_t w = 0; w < pairs; w += 4) {
      Words out[4];
      transpose_quad(block + w, stride / 2, rows - lane, out);
      for (int i = 0; i < 4; ++i) {
        float* const row = to + (w + i) * 2 * kStrip + lane;
        hn::StoreU(hn::BitCast(Lanes(), hn::ShiftLeft<16>(out[i])), Lanes(), row);
        hn::StoreU(hn::BitCast(Lanes(), hn::And(out[i], high)), Lanes(), row + kStrip);
      }
    }
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target include guard
