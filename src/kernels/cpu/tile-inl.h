// The one microkernel family of all matmuls: a tile of MR rows by one strip of columns, every element one chain
//   c[r, j] = init[r, j];  c[r, j] = fma(a[r, k], b[k, j], c[r, j])  for k in order.
// Which tile an element falls into changes no bit of it, so callers are free to cut rows, strips and depth as speed
// asks; a later depth block passes init = c and continues the chain.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(LOCKSTEP_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_TILE_INL_H_
#undef LOCKSTEP_KERNELS_TILE_INL_H_
#else
#define LOCKSTEP_KERNELS_TILE_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The accumulators of a full tile, two B vectors, one broadcast and one mask fill the register file exactly.
#if HWY_TARGET <= HWY_AVX3
constexpr int kLanes = 16, kTileRows = 14, kStrip = 32, kNarrowStrip = 16;
#elif HWY_TARGET <= HWY_SSSE3
constexpr int kLanes = 8, kTileRows = 6, kStrip = 16, kNarrowStrip = 16;
#else
constexpr int kLanes = 4, kTileRows = 6, kStrip = 16, kNarrowStrip = 16;
#endif
using Lanes = hn::CappedTag<float, kLanes>;
using LanesU32 = hn::RebindToUnsigned<Lanes>;
using VecF = hn::Vec<Lanes>;

// How the rows of A lie in memory.
enum class Layout {
  rows,     // element (r, k) at a[r * a_stride + k]
  columns,  // element (r, k) at a[k * a_stride + r]
};

template <class T>
struct TileCall {
  const float* a;
  size_t a_stride;
  const T* b;  // row k of the strip at b + k * b_stride
  size_t b_stride;
  size_t ahead;           // elements from a row of the strip to what will be read some time later: fetched meanwhile
  const T* fetch;         // what comes after this strip, or a part of it: goes to the second cache meanwhile
  size_t fetch_step = 0;  // elements for each row of the strip
  size_t depth;
  const float* init;  // row r at init + r * init_stride; stride 0 starts every row from the same values
  size_t init_stride;
  float* c;
  size_t c_stride;
};

// How a strip row of stored weights becomes f32 vectors. The order of columns inside the vectors is the loader's own
// business: bf16 splits each 32-bit pair into its low and its high half (two cheap operations, no shuffle), so even and
// odd columns live in different vectors and are interleaved only where the tile meets memory.
struct LoadF32 {
  using Stored = float;
  template <int NV>
  static HWY_INLINE void weights(const float* b, VecF (&v)[NV]) {
    for (int i = 0; i < NV; ++i) v[i] = hn::LoadU(Lanes(), b + i * kLanes);
  }
  template <int NV>
  static HWY_INLINE void get(const float* p, VecF (&v)[NV]) {
    weights(p, v);
  }
  template <int NV>
  static HWY_INLINE void put(const VecF (&v)[NV], float* p) {
    for (int i = 0; i < NV; ++i) hn::StoreU(v[i], Lanes(), p + i * kLanes);
  }
};

struct LoadBf16 {
  using Stored = uint16_t;
  template <int NV>
  static HWY_INLINE void weights(const uint16_t* b, VecF (&v)[NV]) {
    const auto high = hn::Set(LanesU32(), 0xffff0000u);
    for (int i = 0; i < NV; i += 2) {
      const auto pair = hn::LoadU(LanesU32(), reinterpret_cast<const uint32_t*>(b + i * kLanes));
      v[i] = hn::BitCast(Lanes(), hn::ShiftLeft<16>(pair));
      v[i + 1] = hn::BitCast(Lanes(), hn::And(pair, high));
    }
  }
  template <int NV>
  static HWY_INLINE void get(const float* p, VecF (&v)[NV]) {
    for (int i = 0; i < NV; i += 2) hn::LoadInterleaved2(Lanes(), p + i * kLanes, v[i], v[i + 1]);
  }
  template <int NV>
  static HWY_INLINE void put(const VecF (&v)[NV], float* p) {
    for (int i = 0; i < NV; i += 2) hn::StoreInterleaved2(v[i], v[i + 1], Lanes(), p + i * kLanes);
  }
};

struct LoadF16 : LoadF32 {
  using Stored = hwy::float16_t;
  template <int NV>
  static HWY_INLINE void weights(const hwy::float16_t* b, VecF (&v)[NV]) {
    const hn::Rebind<hwy::float16_t, Lanes> half;
    for (int i = 0; i < NV; ++i) v[i] = hn::PromoteTo(Lanes(), hn::LoadU(half, b + i * kLanes));
  }
};

// Keeps the compiler from turning MR row addresses into as many registers: it would spill some into vector registers
// and fetch them back on the pipes that multiply.
HWY_INLINE void keep_pointer(const float*& p) {
  asm volatile("" : "+r"(p));
}

template <class Load, Layout kLayout, int MR, int NV>
HWY_NOINLINE void tile(const TileCall<typename Load::Stored>& call) {
  VecF acc[MR][NV];
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) Load::get(call.init + r * call.init_stride, acc[r]);
  constexpr int kRowsPerPointer = kLayout == Layout::rows ? 3 : MR;
  constexpr int kPointers = (MR + kRowsPerPointer - 1) / kRowsPerPointer;
  const size_t a_stride = call.a_stride, b_stride = call.b_stride;
  const size_t row_step = kLayout == Layout::rows ? a_stride : 1, depth_step = kLayout == Layout::rows ? 1 : a_stride;
  const float* a[kPointers];
#pragma GCC unroll 16
  for (int i = 0; i < kPointers; ++i) a[i] = call.a + i * kRowsPerPointer * row_step;
  const auto* HWY_RESTRICT b = call.b;
  const auto* fetch = call.fetch;
  const size_t ahead = call.ahead, fetch_step = call.fetch_step;
  constexpr size_t kLine = 64 / sizeof(*b);
  for (size_t k = call.depth; k > 0; --k, b += b_stride) {
#pragma GCC unroll 4
    for (size_t line = 0; line < NV * kLanes; line += kLine) {
      __builtin_prefetch(b + ahead + line);
      __builtin_prefetch(fetch + line, 0, 2);
    }
    fetch += fetch_step;
    VecF bv[NV];
    Load::weights(b, bv);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const VecF ar = hn::Set(Lanes(), a[r / kRowsPerPointer][r % kRowsPerPointer * row_step]);
#pragma GCC unroll 4
      for (int i = 0; i < NV; ++i) acc[r][i] = hn::MulAdd(ar, bv[i], acc[r][i]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) {
      a[i] += depth_step;
      keep_pointer(a[i]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) Load::put(acc[r], call.c + r * call.c_stride);
}

template <class Load>
using TileFn = void (*)(const TileCall<typename Load::Stored>&);

template <class Load, Layout kLayout, int NV, size_t... R>
constexpr std::array<TileFn<Load>, sizeof...(R)> tiles_of(std::index_sequence<R...>) {
  return {&tile<Load, kLayout, static_cast<int>(R) + 1, NV>...};
}

// The tile for `rows` in 1 .. kTileRows and `columns` (kStrip or, f32 only, kNarrowStrip).
template <class Load>
HWY_INLINE TileFn<Load> tile_for(Layout layout, int rows, int columns) {
  constexpr auto kSizes = std::make_index_sequence<kTileRows>();
  static constexpr auto kRows = tiles_of<Load, Layout::rows, kStrip / kLanes>(kSizes);
  if constexpr (std::is_same_v<Load, LoadF32>) {
    static constexpr auto kColumns = tiles_of<Load, Layout::columns, kStrip / kLanes>(kSizes);
    static constexpr auto kNarrowRows = tiles_of<Load, Layout::rows, kNarrowStrip / kLanes>(kSizes);
    static constexpr auto kNarrowColumns = tiles_of<Load, Layout::columns, kNarrowStrip / kLanes>(kSizes);
    if (columns < kStrip) return (layout == Layout::rows ? kNarrowRows : kNarrowColumns)[rows - 1];
    if (layout == Layout::columns) return kColumns[rows - 1];
  }
  return kRows[rows - 1];
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target include guard
