// lora_expand and lora_shrink_backward by strips of columns: y is read and written as 16 bytes, and B (or A) stays in
// shared memory while a block iterates over rows.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/lora_expand.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStrips = 2;  // per warp, side by side
constexpr int kColumns = kStrips * kStripColumns;

// The first column of unit number `unit`, when every pair's columns begin a new unit; -1 if there is no such unit.
__device__ int unit_column(const LoraSite& site, int unit) {
  for (int p = 0; p < site.count; ++p) {
    const int units = (site.pair[p].out + kColumns - 1) / kColumns;
    if (unit < units) return site.pair[p].out_begin + unit * kColumns;
    unit -= units;
  }
  return -1;
}

// kGroups as in LaneInput. kPairs = 0: every column belongs to one pair, and pairs begin and end at multiples of 8
// columns; otherwise each of kPairs pairs, whose number of groups is kGroups, contributes to all `cols` columns.
template <int kGroups, int kPairs>
__global__ void __launch_bounds__(256, kPairs > 1 ? 2 : 3)
    expand_strips(const __grid_constant__ OneDelta delta, bf16* y, int stride, int cols, int all_groups, int across) {
  extern __shared__ uint4 shared[];  // [across][strips][pairs][groups][64]
  constexpr int kSums = kPairs > 0 ? kPairs : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) {
    const int unit = static_cast<int>(blockIdx.x) * across + w;
    if constexpr (kPairs == 0) return unit_column(delta.site, unit);
    return unit * kColumns < cols ? unit * kColumns : -1;
  };
  const auto columns_at = [&](int column, int pair) {
    if constexpr (kPairs == 0) return delta.columns(column);
    return delta.columns_of_pair(pair, column);
  };
  let_next_begin();
  for (int i = warp; i < across * kStrips * kSums * groups; i += warps) {
    const int strip = i / groups / kSums, column = column_of(strip / kStrips);
    if (column < 0) break;
    DeltaColumns columns = columns_at(column, i / groups % kSums);
    columns.b.data += strip % kStrips * kStripColumns, columns.b.cols -= strip % kStrips * kStripColumns;
    store_strip(shared + 64 * i, columns, i % groups, lane);
  }
  const int column0 = column_of(warp % across);
  const uint4* const strips = shared + warp % across * kStrips * kSums * groups * 64;
  const DeltaRows rows = delta.my_rows();
  __syncthreads();
  wait_for_previous();
  if (column0 < 0) return;

  const DeltaColumns columns = columns_at(column0, 0);
  const LaneInput<kGroups, true> input(delta.source, columns, lane);
  const LaneInput<kGroups, true> second(delta.source, kPairs > 1 ? columns_at(column0, 1) : columns, lane);
  const LaneInput<kGroups, true> third(delta.source, kPairs > 2 ? columns_at(column0, 2) : columns, lane);
  const int left = static_cast<int>(columns.b.cols) - lane % 4 * 8, step = warps / across * kStripRows;
  const LaneRows<bf16> lane_rows(y, stride, column0 + (left > 0 ? lane % 4 * 8 : 0));
  TileFetch<2 * kStrips> ahead(
      shared + across * kStrips * kSums * groups * 64 + warp * TileFetch<2 * kStrips>::kWarpBytes / 16, lane);
  const auto row_of = [&](int row0, int r) { return min(row0 + lane / 4 + 8 * r, rows.end - 1); };
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
          fetch(r * kStrips + s, lane_rows.at(row_of(row0, r)) + (s * kStripColumns < left ? s * kStripColumns : 0));
    };
  };
  const int first = rows.begin + warp / across * kStripRows;
  if (first < rows.end) ahead.begin(copies_of(first));
  for (int row0 = first; row0 < rows.end; row0 += step) {
    const int row[2] = {row_of(row0, 0), row_of(row0, 1)};
    ahead.advance(row0 + step < rows.end, copies_of(row0 + step));
    Eight x[2][kStrips];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) x[r][s].vector = ahead.piece(r * kStrips + s);
    if constexpr (kPairs == 0) {
      add_to_strips<kStrips>(x, input, columns, strips, groups, row, lane);
    } else {
      const LaneInput<kGroups, true>* const all[] = {&input, &second, &third};
      const LaneInput<kGroups, true>* inputs[kPairs];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) inputs[p] = all[p];
      add_pairs_to_strips<kStrips, kGroups, kPairs>(x, inputs, strips, row, lane);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
        if (row0 + lane / 4 + 8 * r < rows.end && s * kStripColumns < left)
          *reinterpret_cast<uint4*>(lane_rows.at(row[r]) + s * kStripColumns) = x[r][s].vector;
  }
}

template <int kGroups, int kPairs>
void launch(const LoraDelta& delta, const DeltaShape& shape, Tensor y, cudaStream_t stream) {
  constexpr auto kKernel = expand_strips<kGroups, kPairs>;
  allow_delta_shared<kKernel>();
  with_one_delta(delta, shape, y[0], [&](const OneDelta& source, dim3 grid) {
    launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream, source, data_of<bf16>(y),
                 static_cast<int>(y.row_stride), static_cast<int>(y[1]), shape.groups, shape.across);
  });
}

}  // namespace

bool expand_by_strips(Tensor y, const LoraDelta& delta, Stream& stream) {
  if (!reads_well(delta) || !rows_aligned(y)) return false;
  int64_t units = 0;
  for (const LoraPair& pair : delta.pairs) {
    if (pair.out_begin % 8 != 0 || pair.b[1] % 8 != 0) return false;
    units += (pair.b[1] + kColumns - 1) / kColumns;
  }
  const DeltaShape shape =
      delta_shape(delta, y[0], units, kStrips, TileFetch<2 * kStrips>::kWarpBytes, library_of(stream).multiprocessors);
  with_groups<OneDelta>(shape, [&](auto groups) { launch<groups.value, 0>(delta, shape, y, stream_of(stream)); });
  return true;
}

bool shrink_backward_by_strips(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream) {
  if (pairs.size() > size_t{kMaxSitePairs} || dx[1] % 8 != 0 || !rows_aligned(dx)) return false;
  LoraPair by_a[kMaxSitePairs];  // dx += dh A: A has the part that B has in lora_expand
  for (size_t p = 0; p < pairs.size(); ++p) by_a[p] = {.a = pairs[p].b, .b = pairs[p].a};
  const LoraDelta delta{.h = dh, .pairs = std::span(by_a, pairs.size())};
  if (pairs.size() == 1) return expand_by_strips(dx, delta, stream);
  if (!reads_well(delta)) return false;
  const int64_t units = (dx[1] + kColumns - 1) / kColumns;
  const DeltaShape shape = delta_shape(delta, dx[0], units, kStrips * static_cast<int>(pairs.size()),
                                       TileFetch<2 * kStrips>::kWarpBytes, library_of(stream).multiprocessors);
  const auto start = [&](auto groups) {
    constexpr void (*kLaunch[])(const LoraDelta&, const DeltaShape&, Tensor, cudaStream_t) = {launch<groups.value, 2>,
                                                                                              launch<groups.value, 3>};
    kLaunch[pairs.size() - 2](delta, shape, dx, stream_of(stream));
  };
  switch (shape.known_groups) {
    case 1: start(std::integral_constant<int, 1>()); return true;
    case 2: start(std::integral_constant<int, 2>()); return true;
    default: return false;
  }
}

}  // namespace lockstep::kernels::cuda
