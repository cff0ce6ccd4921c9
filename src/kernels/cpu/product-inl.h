// A matrix product as loops over tiles: C (+)= scale(A) * B with B delivered strip by strip by a Source.
//
// A Source has  using Load   how its stored type is widened;
//               kRoom        whether strips are made in scratch memory (then `room` holds depth_block * kStrip floats);
//               strip(index, begin, depth, room)   rows [begin, begin + depth) of strip `index`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/stream.h"
#include "kernels/cpu/split.h"

#if defined(LOCKSTEP_KERNELS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_PRODUCT_INL_H_
#undef LOCKSTEP_KERNELS_PRODUCT_INL_H_
#else
#define LOCKSTEP_KERNELS_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

constexpr int kMaxGroup = 16;  // strips that share one packed tile of A

struct Product {
  int64_t rows = 0, columns = 0, depth = 0;
  const float* a = nullptr;
  size_t a_stride = 0;
  Layout layout = Layout::rows;
  float scale = 1;
  const float* init = nullptr;  // chain (r, j) starts at init[r * init_stride + j]; nullptr: at 0
  size_t init_stride = 0;
  float* c = nullptr;
  size_t c_stride = 0;

  int64_t strips() const { return ceil_div(columns, kStrip); }
};

template <class Stored>
struct StripView {
  const Stored* data;
  size_t stride;
};

// Sizes of the cache blocks. A tile's rows of A stay in the first cache while the strips of a group pass by; the strips of
// a group stay in the second while the rows pass by.
struct Blocking {
  size_t depth = 0;
  int group = 1;
  bool pack = false;
  size_t pack_stride = 0;
  size_t pack_floats = 0;
  size_t room_floats = 0;  // of one strip
  size_t scratch_bytes() const { return (pack_floats + static_cast<size_t>(group) * room_floats) * sizeof(float); }
};

// Rows whose distance is nearly a multiple of a page fall into the same few sets of the first cache and evict one another.
inline bool rows_collide(size_t stride, int64_t rows) {
  constexpr size_t kSpread = 1024;
  const size_t bytes = stride * sizeof(float);
  return rows > 4 && (bytes & (~bytes + 1)) >= kSpread;  // the largest power of two that divides the distance
}

template <class Source>
Blocking choose_blocking(const Product& p, int64_t rows) {
  constexpr size_t kTileFloats = 640 * 14, kRoomDepth = 512, kGroupBytes = 384 << 10, kAlign = 32;
  const auto tile_rows = static_cast<size_t>(std::clamp<int64_t>(rows, 1, kTileRows));
  const auto depth = static_cast<size_t>(p.depth);
  const size_t most = Source::kRoom ? kRoomDepth : kTileFloats / tile_rows;
  Blocking b;
  const size_t blocks = std::max<size_t>(1, (depth + most - 1) / most);
  b.depth = ((depth + blocks - 1) / blocks + kAlign - 1) / kAlign * kAlign;
  const size_t strip_bytes = std::max<size_t>(1, b.depth * kStrip * sizeof(typename Source::Load::Stored));
  b.group = static_cast<int>(std::clamp<size_t>(kGroupBytes / strip_bytes, 1, kMaxGroup));
  b.pack = p.scale != 1 || (p.layout == Layout::rows && rows_collide(p.a_stride, rows));
  b.pack_stride = p.layout == Layout::rows ? b.depth + 16 : 16;
  b.pack_floats = !b.pack ? 0 : p.layout == Layout::rows ? kTileRows * b.pack_stride : b.depth * 16;
  b.room_floats = Source::kRoom ? b.depth * kStrip : 0;
  return b;
}

// to[i] = scale * from[i]; the one rounding that `scale` costs.
HWY_INLINE void scale_row(const float* from, size_t n, float scale, float* to) {
  const Lanes d;
  const VecF s = hn::Set(d, scale);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(s, hn::LoadU(d, from + i)), d, to + i);
  for (; i < n; ++i) to[i] = scale * from[i];
}

// One tile of rows over one strip; columns past the edge of C go through a buffer.
template <class Load>
HWY_INLINE void run_tile(TileCall<typename Load::Stored> call, Layout layout, int rows, int width) {
  alignas(64) static constexpr float kZeros[kStrip] = {};
  const int columns = std::is_same_v<Load, LoadF32> && width <= kNarrowStrip ? kNarrowStrip : kStrip;
  const TileFn<Load> tile = tile_for<Load>(layout, rows, columns);
  if (call.init == nullptr) call.init = kZeros, call.init_stride = 0;
  if (width == columns) {
    tile(call);
    return;
  }
  alignas(64) float edge[kTileRows * kStrip];
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < columns; ++j) edge[r * kStrip + j] = j < width ? call.init[r * call.init_stride + j] : 0.0f;
  float* const c = call.c;
  const size_t c_stride = call.c_stride;
  call.init = call.c = edge;
  call.init_stride = call.c_stride = kStrip;
  tile(call);
  for (int r = 0; r < rows; ++r) std::copy_n(edge + r * kStrip, width, c + r * c_stride);
}

// Rows [begin, begin + rows) of A over one depth block, packed if the blocking asks for it.
struct TileRows {
  const float* a;
  size_t stride;
};
inline TileRows take_rows(const Product& p, const Blocking& b, Span rows, size_t begin, size_t depth, float* pack) {
  const bool by_row = p.layout == Layout::rows;
  const float* const a = p.a + (by_row ? rows.begin * p.a_stride + begin : begin * p.a_stride + rows.begin);
  if (!b.pack) return {a, p.a_stride};
  const size_t lines = by_row ? static_cast<size_t>(rows.size()) : depth;
  const size_t length = by_row ? depth : static_cast<size_t>(rows.size());
  for (size_t i = 0; i < lines; ++i) scale_row(a + i * p.a_stride, length, p.scale, pack + i * b.pack_stride);
  return {pack, b.pack_stride};
}

// The part of the product at `rows` x `strips`. `scratch` holds b.scratch_bytes().
template <class Source>
void compute_part(const Product& p, const Source& source, const Blocking& b, Span rows, Span strips, float* scratch) {
  using Load = typename Source::Load;
  float* const rooms = scratch + b.pack_floats;
  const int64_t tiles = ceil_div(rows.size(), kTileRows);
  for (int64_t group = strips.begin; group < strips.end; group += b.group) {
    const int members = static_cast<int>(std::min<int64_t>(b.group, strips.end - group));
    size_t begin = 0;
    do {
      const size_t depth = std::min(b.depth, static_cast<size_t>(p.depth) - begin);
      StripView<typename Load::Stored> views[kMaxGroup];
      for (int s = 0; s < members; ++s)
        views[s] = source.strip(group + s, begin, depth, rooms + static_cast<size_t>(s) * b.room_floats);
      for (int64_t t = 0; t < tiles; ++t) {
        const Span part = even_part(rows.size(), tiles, t);
        const Span at{rows.begin + part.begin, rows.begin + part.end};
        const TileRows a = take_rows(p, b, at, begin, depth, scratch);
        for (int s = 0; s < members; ++s) {
          const int64_t column = (group + s) * kStrip;
          float* const c = p.c + at.begin * p.c_stride + column;
          const float* const init = begin > 0 ? c : p.init ? p.init + at.begin * p.init_stride + column : nullptr;
          run_tile<Load>({a.a, a.stride, views[s].data, views[s].stride, depth, init,
                          begin > 0 ? p.c_stride : p.init_stride, c, p.c_stride},
                         p.layout, static_cast<int>(at.size()),
                         static_cast<int>(std::min<int64_t>(kStrip, p.columns - column)));
        }
      }
      begin += depth;
    } while (begin < static_cast<size_t>(p.depth));
  }
}

// The whole product, spread over the stream's workers.
template <class Source>
void run_product(const Product& p, const Source& source, int64_t strip_cycles, Stream& stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const Grid grid = choose_grid({.rows = p.rows, .strips = p.strips(), .depth = p.depth, .tile_rows = kTileRows,
                                 .row_cycles = 2, .strip_cycles = strip_cycles},
                                stream.threads());
  const Blocking blocking = choose_blocking<Source>(p, ceil_div(p.rows, grid.row_parts));
  stream.parallel(grid.tasks(), [&](int64_t index, int worker) {
    auto* const scratch = static_cast<float*>(stream.scratch(worker, blocking.scratch_bytes()));
    compute_part(p, source, blocking, even_part(p.rows, grid.row_parts, index % grid.row_parts),
                 even_part(p.strips(), grid.strip_parts, index / grid.row_parts), scratch);
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target include guard
