// Sixteen virtual lanes over whatever vectors the target has: one AVX-512 register, two AVX2 or four NEON registers.
// Every sum inside a row goes through Row16, so its bits are the same on each target. Included once per target.

#if defined(LOCKSTEP_KERNELS_CPU_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_ROW_INL_H_
#undef LOCKSTEP_KERNELS_CPU_ROW_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_ROW_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using Vec32 = hn::Vec<F32>;
using Mask32 = hn::Mask<F32>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
inline constexpr int kParts = 16 / kLanes;

struct Row16 {
  Vec32 part[kParts];
};

HWY_INLINE Row16 set16(float x) {
  Row16 y;
  for (int i = 0; i < kParts; ++i) y.part[i] = hn::Set(F32(), x);
  return y;
}
HWY_INLINE Row16 load16(const float* p) {
  Row16 y;
  for (int i = 0; i < kParts; ++i) y.part[i] = hn::LoadU(F32(), p + i * kLanes);
  return y;
}
HWY_INLINE void store16(Row16 x, float* p) {
  for (int i = 0; i < kParts; ++i) hn::StoreU(x.part[i], F32(), p + i * kLanes);
}
HWY_INLINE Row16 add(Row16 a, Row16 b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Add(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Row16 sub(Row16 a, Row16 b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Sub(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Row16 mul(Row16 a, Row16 b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Mul(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Row16 div(Row16 a, Row16 b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Div(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Row16 sqrt(Row16 a) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Sqrt(a.part[i]);
  return a;
}
HWY_INLINE Row16 max(Row16 a, Row16 b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = hn::Max(a.part[i], b.part[i]);
  return a;
}
// a * b + c, one rounding
HWY_INLINE Row16 fma(Row16 a, Row16 b, Row16 c) {
  for (int i = 0; i < kParts; ++i) c.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return c;
}
// x where selector > 0, else 0
HWY_INLINE Row16 where_positive(Row16 selector, Row16 x) {
  for (int i = 0; i < kParts; ++i) x.part[i] = hn::IfThenElseZero(hn::Gt(selector.part[i], hn::Zero(F32())), x.part[i]);
  return x;
}

// Loads and stores of 16 elements, or of the first few of them: the rest reads as 0 and is not written.
struct Whole16 {
  HWY_INLINE Row16 load(const float* p) const { return load16(p); }
  HWY_INLINE void store(Row16 x, float* p) const { store16(x, p); }
  HWY_INLINE Row16 keep_or(Row16 x, float) const { return x; }
};
struct First16 {
  Mask32 mask[kParts];

  HWY_INLINE explicit First16(int64_t count) {
    for (int i = 0; i < kParts; ++i) {
      const int64_t left = count - i * kLanes;
      mask[i] = hn::FirstN(F32(), static_cast<size_t>(left < 0 ? 0 : left > kLanes ? kLanes : left));
    }
  }
  HWY_INLINE Row16 load(const float* p) const {
    Row16 y;
    for (int i = 0; i < kParts; ++i) y.part[i] = hn::MaskedLoad(mask[i], F32(), p + i * kLanes);
    return y;
  }
  HWY_INLINE void store(Row16 x, float* p) const {
    for (int i = 0; i < kParts; ++i) hn::BlendedStore(x.part[i], mask[i], F32(), p + i * kLanes);
  }
  // x in the lanes that exist, `other` in the rest
  HWY_INLINE Row16 keep_or(Row16 x, float other) const {
    for (int i = 0; i < kParts; ++i) x.part[i] = hn::IfThenElse(mask[i], x.part[i], hn::Set(F32(), other));
    return x;
  }
};

// body(offset, lanes) for offset = 0, 16, ...; `lanes` is Whole16, or First16 for the ragged end.
template <class Body>
HWY_INLINE void for_row16(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, Whole16());
  if (i < count) body(i, First16(count - i));
}

// The pairwise end of a row's sum: 8+8, 4+4, 2+2, 1+1.
HWY_INLINE float sum16(Row16 x) {
  HWY_ALIGN float lane[16];
  store16(x, lane);
  const hn::CappedTag<float, 4> d4;
  const auto low = hn::Add(hn::Load(d4, lane), hn::Load(d4, lane + 8));
  const auto high = hn::Add(hn::Load(d4, lane + 4), hn::Load(d4, lane + 12));
  hn::Store(hn::Add(low, high), d4, lane);
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

HWY_INLINE float max16(Row16 x) {
  HWY_ALIGN float lane[16];
  store16(x, lane);
  const hn::CappedTag<float, 4> d4;
  const auto low = hn::Max(hn::Load(d4, lane), hn::Load(d4, lane + 8));
  const auto high = hn::Max(hn::Load(d4, lane + 4), hn::Load(d4, lane + 12));
  hn::Store(hn::Max(low, high), d4, lane);
  const float a = lane[0] > lane[2] ? lane[0] : lane[2], b = lane[1] > lane[3] ? lane[1] : lane[3];
  return a > b ? a : b;
}

// exp(x), within 1 ulp where the result is a normal number below 2^127.5. Exactly 0 below x = -87.3365, because a
// denormal probability is worth nothing and slows every multiply-add it meets; infinite above x = 88.376; NaN stays
// NaN. n = round(x / ln 2) is read from the low bits of x / ln 2 + 1.5 * 2^23; exp(x - n ln 2) is a minimax polynomial
// (relative error 3.1e-9 on |r| <= ln 2 / 2).
HWY_INLINE Vec32 exp_vec(Vec32 x) {
  const F32 d;
  const I32 di;
  const auto magic = hn::Set(d, 12582912.0f);
  const auto t = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const auto n = hn::Sub(t, magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693147182464599609375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -1.904654299957767e-9f), r);
  auto y = hn::MulAdd(hn::Set(d, 0x1.6a23dp-10f), r, hn::Set(d, 0x1.123a2p-7f));
  y = hn::MulAdd(y, r, hn::Set(d, 0x1.5558f2p-5f));
  y = hn::MulAdd(y, r, hn::Set(d, 0x1.555492p-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 0x1.fffffcp-2f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, t)), hn::Set(di, 127 << 23));
  y = hn::Mul(y, hn::BitCast(d, power));
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.376f)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3365f)), y);
}

HWY_INLINE Row16 exp16(Row16 x) {
  for (int i = 0; i < kParts; ++i) x.part[i] = exp_vec(x.part[i]);
  return x;
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
