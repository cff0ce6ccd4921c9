#include "kernels/add_rounded.h"

#include <cstring>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add_rounded.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using Float16s = hn::Rebind<hwy::float16_t, Floats>;
using VecFloats = hn::Vec<Floats>;

// How each type is read and written, a vector at a time.
struct StoredF32 {
  using Element = float;
  static HWY_INLINE VecFloats load(const float* p) { return hn::LoadU(Floats(), p); }
  static HWY_INLINE void store(VecFloats v, float* p) { hn::StoreU(v, Floats(), p); }
};

struct StoredBF16 {
  using Element = uint16_t;
  static HWY_INLINE VecFloats load(const uint16_t* p) {
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), p))));
  }
  // to_bf16 of core/tensor.h.
  static HWY_INLINE void store(VecFloats v, uint16_t* p) {
    const auto bits = hn::BitCast(Words(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(Words(), 0x7fff)), odd);
    const auto quiet = hn::Or(bits, hn::Set(Words(), 0x400000));
    const auto kept = hn::IfThenElse(hn::RebindMask(Words(), hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(kept)), Halves(), p);
  }
};

struct StoredF16 {
  using Element = hwy::float16_t;
  static HWY_INLINE VecFloats load(const hwy::float16_t* p) {
    return hn::PromoteTo(Floats(), hn::LoadU(Float16s(), p));
  }
  static HWY_INLINE void store(VecFloats v, hwy::float16_t* p) {
    hn::StoreU(hn::DemoteTo(Float16s(), v), Float16s(), p);
  }
};

template <class To, class From>
HWY_INLINE void round_vector(typename To::Element* to, const typename From::Element* from, const float* delta,
                             VecFloats scale) {
  VecFloats value = From::load(from);
  if (delta != nullptr) value = hn::MulAdd(scale, hn::LoadU(Floats(), delta), value);
  To::store(value, to);
}

template <class To, class From>
void round_all(const Tensor& out, const ConstTensor& weight, const float* delta, float factor) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  const auto scale = hn::Set(Floats(), factor);
  auto* to = static_cast<typename To::Element*>(out.data);
  const auto* from = static_cast<const typename From::Element*>(weight.data);
  const int64_t count = out.elements();
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    round_vector<To, From>(to + i, from + i, delta == nullptr ? nullptr : delta + i, scale);
  const auto left = static_cast<size_t>(count - i);
  if (left == 0) return;
  HWY_ALIGN typename From::Element last_from[hn::MaxLanes(Floats())] = {};
  HWY_ALIGN typename To::Element last_to[hn::MaxLanes(Floats())];
  HWY_ALIGN float last_delta[hn::MaxLanes(Floats())] = {};
  std::memcpy(last_from, from + i, left * sizeof(*from));
  if (delta != nullptr) std::memcpy(last_delta, delta + i, left * sizeof(float));
  round_vector<To, From>(last_to, last_from, delta == nullptr ? nullptr : last_delta, scale);
  std::memcpy(to + i, last_to, left * sizeof(*to));
}

template <class To>
void round_to(const Tensor& out, const ConstTensor& weight, const float* delta, float scale) {
  if (weight.dtype == DType::f32) return round_all<To, StoredF32>(out, weight, delta, scale);
  if (weight.dtype == DType::bf16) return round_all<To, StoredBF16>(out, weight, delta, scale);
  round_all<To, StoredF16>(out, weight, delta, scale);
}

void add_rounded_flat(const Tensor& out, const ConstTensor& weight, const float* delta, float scale) {
  if (out.dtype == DType::f32) return round_to<StoredF32>(out, weight, delta, scale);
  if (out.dtype == DType::bf16) return round_to<StoredBF16>(out, weight, delta, scale);
  round_to<StoredF16>(out, weight, delta, scale);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(add_rounded_flat);

namespace cpu {

void add_rounded(Tensor out, ConstTensor weight, ConstTensor delta, float scale, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, add_rounded_flat)(out, weight, static_cast<const float*>(delta.data), scale);
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif
