#include <cstring>
#include <type_traits>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

void add_row(float* y, const float* x, int64_t width) {
  for_row16(width, [&](int64_t i, auto lanes) { lanes.store(add(lanes.load(y + i), lanes.load(x + i)), y + i); });
}

using U32 = hn::RebindToUnsigned<F32>;
using VecU32 = hn::Vec<U32>;

// High and low halves of a * b.
HWY_INLINE void wide_matmul(VecU32 a, VecU32 b, VecU32& high, VecU32& low) {
  const hn::Repartition<uint64_t, U32> wide;
  const auto even = hn::BitCast(U32(), hn::MulEven(a, b));
  const auto odd = hn::BitCast(U32(), hn::MulEven(hn::BitCast(U32(), hn::ShiftRight<32>(hn::BitCast(wide, a))), b));
  high = hn::OddEven(odd, hn::BitCast(U32(), hn::ShiftRight<32>(hn::BitCast(wide, even))));
  low = hn::OddEven(hn::BitCast(U32(), hn::ShiftLeft<32>(hn::BitCast(wide, odd))), even);
}

// core/random.h's philox for counters {counter[0], counter[1], counter[2], counter[3] | group + lane}: kLanes groups of
// four columns. bits[4 * lane + k] = draw k of a lane.
HWY_INLINE void philox_groups(uint64_t key, const Counter& counter, uint32_t group, uint32_t* bits) {
  const U32 d;
  auto c0 = hn::Set(d, counter[0]), c1 = hn::Set(d, counter[1]), c2 = hn::Set(d, counter[2]);
  auto c3 = hn::Or(hn::Set(d, counter[3]), hn::Iota(d, group));
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    VecU32 high0, low0, high1, low1;
    wide_matmul(c0, hn::Set(d, 0xD2511F53u), high0, low0);
    wide_matmul(c2, hn::Set(d, 0xCD9E8D57u), high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c1 = low1;
    c3 = low0;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, bits);
}

// x / keep_share where uniform01(bits) >= p, else 0. The 24 bits of the draw are exact in f32.
HWY_INLINE Row16 keep(Row16 x, const uint32_t* bits, float p, float keep_share) {
  for (int i = 0; i < kParts; ++i) {
    const auto drawn = hn::BitCast(I32(), hn::ShiftRight<8>(hn::LoadU(U32(), bits + i * kLanes)));
    const auto uniform = hn::Mul(hn::ConvertTo(F32(), drawn), hn::Set(F32(), 0x1p-24f));
    const auto kept = hn::Div(x.part[i], hn::Set(F32(), keep_share));
    x.part[i] = hn::IfThenElseZero(hn::Ge(uniform, hn::Set(F32(), p)), kept);
  }
  return x;
}

void dropout_row(float* y, const float* x, int64_t width, float p, uint64_t key, const Counter& counter,
                 bool accumulate) {
  HWY_ALIGN uint32_t bits[4 * kLanes];
  for (int64_t begin = 0; begin < width; begin += 4 * kLanes) {
    philox_groups(key, counter, static_cast<uint32_t>(begin / 4), bits);
    for_row16(std::min<int64_t>(4 * kLanes, width - begin), [&](int64_t i, auto lanes) {
      const Row16 kept = keep(lanes.load(x + begin + i), bits + i, p, 1.0f - p);
      float* const to = y + begin + i;
      lanes.store(accumulate ? add(lanes.load(to), kept) : kept, to);
    });
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(add_row);
HWY_EXPORT(dropout_row);

namespace cpu {

void add(Tensor y, ConstTensor x, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, add_row);
  split_rows(stream, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(y.row(t), x.row(t), y.shape[1]);
  });
}

namespace {
template <class View>
auto* bytes_of(const View& x, int64_t row) {
  using Byte = std::conditional_t<std::is_same_v<View, Tensor>, std::byte, const std::byte>;
  return static_cast<Byte*>(x.data) + row * x.row_stride * dtype_bytes(x.dtype);
}
}  // namespace

void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream&) {
  const size_t bytes = static_cast<size_t>(from.row_elements() * dtype_bytes(from.dtype));
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(bytes_of(to, static_cast<int64_t>(i)), bytes_of(from, rows[i]), bytes);
}

void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream&) {
  const size_t bytes = static_cast<size_t>(from.row_elements() * dtype_bytes(from.dtype));
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(bytes_of(to, rows[i]), bytes_of(from, static_cast<int64_t>(i)), bytes);
}

void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, dropout_row);
  split_rows(stream, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto at = static_cast<size_t>(t);
      const Counter first = {counter.step, static_cast<uint32_t>(counter.sample[at]),
                             static_cast<uint32_t>(counter.position[at]), counter.module << 16};
      row(y.row(t), x.row(t), y.shape[1], p, counter.key, first, accumulate);
    }
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
