#include "kernels/linear.h"

#include "kernels/cpu/matrix_ops.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/product-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

static_assert(kPanel % kStrip == 0);

// Strips of W^T as they lie in the panels.
template <class L>
struct PanelStrips {
  using Load = L;
  using Stored = typename L::Stored;
  static constexpr bool kRoom = false;
  const Stored* panels;
  int64_t depth;

  StripView<Stored> strip(int64_t index, size_t begin, size_t, float*) const {
    const int64_t column = index * kStrip;
    return {panels + column / kPanel * kPanel * depth + begin * kPanel + column % kPanel, kPanel, kRowsAhead * kPanel};
  }
};

// Strips of W: blocks of the panels turned and widened in scratch memory. Rows of W past the last are never part of a
// chain; they only fill the last block.
template <class L>
struct TurnedStrips {
  using Load = LoadF32;
  using Stored = typename L::Stored;
  static constexpr bool kRoom = true;
  const Stored* panels;
  int64_t depth;

  StripView<float> strip(int64_t index, size_t begin, size_t count, float* room) const {
    const int64_t column = index * kStrip;
    const int columns = static_cast<int>(std::min<int64_t>(kStrip, depth - column));
    for (size_t n = 0; n < count; n += kPanel)
      turn(panels + static_cast<int64_t>(begin + n) * depth + column * kPanel, columns, room + n * kStrip);
    return {room, kStrip};
  }

  static void turn(const Stored* block, int columns, float* to) {
    if constexpr (std::is_same_v<L, LoadBf16>) {
      transpose_bf16(block, kPanel, columns, kPanel / 2, to);
    } else if constexpr (std::is_same_v<L, LoadF32>) {
      transpose_words(block, kPanel, columns, kPanel, to);
    } else {
      alignas(64) float wide[kStrip * kPanel];
      VecF v[kStrip / kLanes];
      for (int i = 0; i < columns * kPanel; i += kStrip) {
        L::weights(block + i, v);
        L::put(v, wide + i);
      }
      transpose_words(wide, kPanel, columns, kPanel, to);
    }
  }
};

template <class L>
const typename L::Stored* panels_of(const PackedWeight& weight) {
  return static_cast<const typename L::Stored*>(weight.panels.data());
}

template <class L>
void forward(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const ConstTensor& bias,
             Stream& stream) {
  // Fetching a strip row from memory takes about as long as eight rows of arithmetic on it.
  constexpr int64_t kFetchCycles = 16;
  const Product product{.rows = x[0],
                        .columns = weight.rows,
                        .depth = weight.depth,
                        .a = x.f32(),
                        .a_stride = static_cast<size_t>(x.row_stride),
                        .init = bias.empty() ? nullptr : bias.f32(),
                        .init_stride = 0,
                        .c = y.f32(),
                        .c_stride = static_cast<size_t>(y.row_stride)};
  run_product(product, PanelStrips<L>{panels_of<L>(weight), weight.depth}, kFetchCycles, stream);
}

template <class L>
void backward(const Tensor& dx, const ConstTensor& dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  constexpr int64_t kTurnCycles = 8;
  const auto stride = static_cast<size_t>(dx.row_stride);
  const Product product{.rows = dy[0],
                        .columns = weight.depth,
                        .depth = weight.rows,
                        .a = dy.f32(),
                        .a_stride = static_cast<size_t>(dy.row_stride),
                        .init = accumulate ? dx.f32() : nullptr,
                        .init_stride = stride,
                        .c = dx.f32(),
                        .c_stride = stride};
  run_product(product, TurnedStrips<L>{panels_of<L>(weight), weight.depth}, kTurnCycles, stream);
}

void multiply_panels(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const ConstTensor& bias,
                     Stream& stream) {
  switch (weight.dtype) {
    case DType::bf16: return forward<LoadBf16>(y, x, weight, bias, stream);
    case DType::f16: return forward<LoadF16>(y, x, weight, bias, stream);
    default: return forward<LoadF32>(y, x, weight, bias, stream);
  }
}

void multiply_turned_panels(const Tensor& dx, const ConstTensor& dy, const PackedWeight& weight, bool accumulate,
                            Stream& stream) {
  switch (weight.dtype) {
    case DType::bf16: return backward<LoadBf16>(dx, dy, weight, accumulate, stream);
    case DType::f16: return backward<LoadF16>(dx, dy, weight, accumulate, stream);
    default: return backward<LoadF32>(dx, dy, weight, accumulate, stream);
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(multiply_panels);
HWY_EXPORT(multiply_turned_panels);

namespace cpu {

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply_panels)(y, x, weight, bias, stream);
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  LOCKSTEP_DISPATCH(stream, multiply_turned_panels)(dx, dy, weight, accumulate, stream);
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif
