// A matmul as loops over tiles: C (+)= scale(A) * B with B delivered strip by strip by a Source.
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

struct Matmul {
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
  MatmulWork work(int64_t strip_cycles) const {
    return {.rows = rows,
            .strips = strips(),
            .depth = depth,
            .tile_rows = kTileRows,
            .row_cycles = 2,
            .strip_cycles = strip_cycles};
  }
};

template <class Stored>
struct StripView {
  const Stored* data;
  size_t stride;
  size_t ahead = 0;  // TileCall::ahead; 0 for a strip in scratch memory, which is near
};

// Weights come from memory once per step of decoding. The CPU's own prefetching starts anew at every page, which a
// strip leaves after few rows; this far ahead a line arrives in time.
inline constexpr size_t kRowsAhead = 64;

// Sizes of the cache blocks. A block of A stays in the second cache while the strips of B pass by, one at a time.
struct Blocking {
  size_t depth = 0;
  int64_t rows = 0;
  bool pack = false;
  size_t pack_stride = 0;
  size_t tile_floats = 0;  // of one packed tile of A
  size_t pack_floats = 0;
  size_t room_floats = 0;
  size_t scratch_bytes() const { return (pack_floats + room_floats) * sizeof(float); }
};

// Rows whose distance is a multiple of a page fall into the same set of the first cache and evict one another.
inline bool rows_collide(size_t stride, int64_t rows) {
  constexpr size_t kSpread = 4096;
  const size_t bytes = stride * sizeof(float);
  return rows > 4 && (bytes & (~bytes + 1)) >= kSpread;  // the largest power of two that divides the distance
}

// A block of A has at most this many rows; strips pass by it in groups, whose tiles share a row of A.
inline constexpr int64_t kBlockRows = 252, kGroupStrips = 3;

template <class Source>
Blocking choose_blocking(const Matmul& p, int64_t rows) {
  // Strips in scratch memory must not be deep. Those that lie ready are read from end to end, across the edge of one
  // strip into the next, and a block of depth ends that: it costs a tenth of the speed.
  constexpr size_t kDepth = Source::kRoom ? 512 : 2048, kBlockFloats = kDepth * kTileRows, kAlign = 32;
  const int64_t blocks = std::max<int64_t>(1, ceil_div(rows, kBlockRows));
  Blocking b;
  b.rows = std::max<int64_t>(1, ceil_div(rows, blocks));
  const auto depth = static_cast<size_t>(p.depth);
  const size_t most = Source::kRoom ? kDepth : kBlockFloats / static_cast<size_t>(std::min<int64_t>(b.rows, kTileRows));
  const size_t steps = std::max<size_t>(1, (depth + most - 1) / most);
  b.depth = std::max(kAlign, ((depth + steps - 1) / steps + kAlign - 1) / kAlign * kAlign);
  b.pack = p.scale != 1 || (p.layout == Layout::rows && rows_collide(p.a_stride, rows));
  b.pack_stride = p.layout == Layout::rows ? b.depth + 16 : 16;
  b.tile_floats = p.layout == Layout::rows ? kTileRows * b.pack_stride : b.depth * 16;
  b.pack_floats = b.pack ? b.tile_floats * static_cast<size_t>(ceil_div(b.rows, kTileRows)) : 0;
  b.room_floats = Source::kRoom ? b.depth * kStrip * kGroupStrips : 0;
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

// The rows of one tile of A at one depth block, packed into `pack` if the blocking asks for it.
struct TileRows {
  const float* a;
  size_t stride;
};
inline TileRows take_rows(const Matmul& p, const Blocking& b, Span rows, Span depth, float* pack) {
  const bool by_row = p.layout == Layout::rows;
  const float* const a = p.a + (by_row ? rows.begin * p.a_stride + depth.begin : depth.begin * p.a_stride + rows.begin);
  if (!b.pack) return {a, p.a_stride};
  const auto lines = static_cast<size_t>(by_row ? rows.size() : depth.size());
  const auto length = static_cast<size_t>(by_row ? depth.size() : rows.size());
  for (size_t i = 0; i < lines; ++i) scale_row(a + i * p.a_stride, length, p.scale, pack + i * b.pack_stride);
  return {pack, b.pack_stride};
}

// The tiles of one block of rows at one depth block.
struct RowTiles {
  static constexpr int64_t kMax = (kBlockRows + kTileRows - 1) / kTileRows;
  int64_t count;
  Span at[kMax];
  TileRows a[kMax];

  RowTiles(const Matmul& p, const Blocking& b, Span rows, Span depth, float* scratch)
      : count(ceil_div(rows.size(), kTileRows)) {
    for (int64_t t = 0; t < count; ++t) {
      const Span part = even_part(rows.size(), count, t);
      at[t] = {rows.begin + part.begin, rows.begin + part.end};
      a[t] = take_rows(p, b, at[t], depth, scratch + static_cast<size_t>(t) * b.tile_floats);
    }
  }
};

// The tiles of a block over some strips. `after`: the strip this worker is likely to go on with; -1: not known.
// `scratch` holds b.scratch_bytes().
template <class Source>
void compute_strips(const Matmul& p, const Source& source, const Blocking& b, const RowTiles& tiles, Span depth,
                    Span strips, float* scratch, int64_t after = -1) {
  using Load = typename Source::Load;
  const auto steps = static_cast<size_t>(depth.size());
  for (int64_t first = strips.begin; first < strips.end; first += kGroupStrips) {
    const int64_t members = std::min<int64_t>(kGroupStrips, strips.end - first);
    StripView<typename Load::Stored> views[kGroupStrips];
    for (int64_t s = 0; s < members; ++s)
      views[s] = source.strip(first + s, static_cast<size_t>(depth.begin), steps,
                              scratch + b.pack_floats + static_cast<size_t>(s) * steps * kStrip);
    // Several tiles of few rows read a strip from memory once: the next strips are fetched during all of them.
    constexpr int64_t kMaxTiles = 5;
    const int64_t next = first + members < strips.end ? first + members : after;
    const bool fetches = !Source::kRoom && next >= 0 && tiles.count > 1 && tiles.count <= kMaxTiles;
    for (int64_t t = 0; t < tiles.count; ++t)
      for (int64_t s = 0; s < members; ++s) {
        const int64_t column = (first + s) * kStrip, row = tiles.at[t].begin;
        float* const c = p.c + row * p.c_stride + column;
        TileCall<typename Load::Stored> call{.a = tiles.a[t].a,
                                             .a_stride = tiles.a[t].stride,
                                             .b = views[s].data,
                                             .b_stride = views[s].stride,
                                             .ahead = views[s].ahead,
                                             .depth = steps,
                                             .init = c,
                                             .init_stride = p.c_stride,
                                             .c = c,
                                             .c_stride = p.c_stride};
        call.fetch = views[s].data + views[s].ahead;
        if (fetches) {
          const StripView<typename Load::Stored> coming =
              source.strip(std::min(next + s, p.strips() - 1), static_cast<size_t>(depth.begin), steps, nullptr);
          call.fetch = coming.data + steps * coming.stride * static_cast<size_t>(t) / static_cast<size_t>(tiles.count);
          call.fetch_step = coming.stride / static_cast<size_t>(tiles.count) + 1;
        }
        if (depth.begin == 0) {
          call.init = p.init ? p.init + row * p.init_stride + column : nullptr;
          call.init_stride = p.init_stride;
        }
        run_tile<Load>(call, p.layout, static_cast<int>(tiles.at[t].size()),
                       static_cast<int>(std::min<int64_t>(kStrip, p.columns - column)));
      }
  }
}

// end(rows, strips) goes on with a part of C whose chains are complete, while it is in the second cache.
struct NoEnd {
  void operator()(Span, Span) const {}
};

// The part of the matmul at `rows` x `strips`. `after` and `scratch` as in compute_strips.
template <class Source, class End = NoEnd>
void compute_part(const Matmul& p, const Source& source, const Blocking& b, Span rows, Span strips, float* scratch,
                  int64_t after = -1, const End& end = {}) {
  constexpr int64_t kNearFloats = 32768;
  const auto depth_step = static_cast<int64_t>(b.depth);
  for (int64_t row = rows.begin; row < rows.end; row += b.rows) {
    const Span block{row, std::min(rows.end, row + b.rows)};
    for (int64_t k = 0; k == 0 || k < p.depth; k += depth_step) {
      const Span depth{k, std::min(p.depth, k + depth_step)};
      const RowTiles tiles(p, b, block, depth, scratch);
      const bool ends = !std::is_same_v<End, NoEnd> && depth.end == p.depth;
      const int64_t groups = kNearFloats / (block.size() * kStrip * kGroupStrips);
      const int64_t step = ends ? kGroupStrips * std::max<int64_t>(1, groups) : strips.size();
      for (int64_t first = strips.begin; first < strips.end; first += step) {
        const Span near{first, std::min(strips.end, first + step)};
        compute_strips(p, source, b, tiles, depth, near, scratch, near.end < strips.end ? near.end : after);
        if (ends) end(block, near);
      }
    }
  }
}

// The whole matmul, spread over the stream's workers.
template <class Source>
void run_matmul(const Matmul& p, const Source& source, int64_t strip_cycles, Stream& stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const Grid grid = choose_grid(p.work(strip_cycles), stream.threads());
  const Blocking blocking = choose_blocking<Source>(p, ceil_div(p.rows, grid.row_parts));
  stream.parallel(grid.tasks(), [&](int64_t index, int worker) {
    auto* const scratch = static_cast<float*>(stream.scratch(worker, blocking.scratch_bytes()));
    compute_part(p, source, blocking, even_part(p.rows, grid.row_parts, index % grid.row_parts),
                 even_part(p.strips(), grid.strip_parts, index / grid.row_parts), scratch,
                 grid.after(p.strips(), index, stream.threads()));
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target include guard
