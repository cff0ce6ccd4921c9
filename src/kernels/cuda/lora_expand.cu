// lora_expand by strips: y is read and written as 16 bytes, B lies in shared memory while the rows go by.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/lora_expand.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStrips = 2;  // of a warp, side by side
constexpr int kColumns = kStrips * kStripColumns;

// The first column of unit number `unit`, when every pair's columns begin a unit of their own; -1: there is none.
__device__ int unit_column(const LoraSite& site, int unit) {
  for (int p = 0; p < site.count; ++p) {
    const int units = (site.pair[p].out + kColumns - 1) / kColumns;
    if (unit < units) return site.pair[p].out_begin + unit * kColumns;
    unit -= units;
  }
  return -1;
}

// kGroups as in LaneInput. Pairs begin and end at multiples of 8 columns.
template <int kGroups>
__global__ void __launch_bounds__(256, 3)
    expand_strips(const __grid_constant__ OneDelta delta, bf16* y, int stride, int all_groups, int across) {
  extern __shared__ uint4 shared[];  // [across][strips][groups][64]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) { return unit_column(delta.site, static_cast<int>(blockIdx.x) * across + w); };
  let_next_begin();
  for (int i = warp; i < across * kStrips * groups; i += warps) {
    const int strip = i / groups, column = column_of(strip / kStrips);
    if (column < 0) break;
    DeltaColumns columns = delta.columns(column);
    columns.b.data += strip % kStrips * kStripColumns, columns.b.cols -= strip % kStrips * kStripColumns;
    store_strip(shared + 64 * i, columns, i % groups, lane);
  }
  const int column0 = column_of(warp % across);
  const DeltaColumns columns = delta.columns(column0);
  const uint4* const strips = shared + warp % across * kStrips * groups * 64;
  const DeltaRows rows = delta.my_rows();
  __syncthreads();
  wait_for_previous();
  if (column0 < 0) return;

  const LaneInput<kGroups, true> input(delta.source, columns, lane);
  const int left = static_cast<int>(columns.b.cols) - lane % 4 * 8, step = warps / across * kStripRows;
  const LaneRows<bf16> lane_rows(y, stride, column0 + (left > 0 ? lane % 4 * 8 : 0));
  TileFetch<2 * kStrips> ahead(shared + across * kStrips * groups * 64 + warp * TileFetch<2 * kStrips>::kWarpBytes / 16,
                               lane);
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
    ahead.turn(row0 + step < rows.end, copies_of(row0 + step));
    Eight x[2][kStrips];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) x[r][s].vector = ahead.piece(r * kStrips + s);
    add_to_strips<kStrips>(x, input, columns, strips, groups, row, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
        if (row0 + lane / 4 + 8 * r < rows.end && s * kStripColumns < left)
          *reinterpret_cast<uint4*>(lane_rows.at(row[r]) + s * kStripColumns) = x[r][s].vector;
  }
}

}  // namespace

bool expand_by_strips(Tensor y, const PendingDelta& delta, Stream& stream) {
  if (!reads_well(delta) || !rows_aligned(y)) return false;
  int64_t units = 0;
  for (const LoraPair& pair : delta.pairs) {
    if (pair.out_begin % 8 != 0 || pair.b[1] % 8 != 0) return false;
    units += (pair.b[1] + kColumns - 1) / kColumns;
  }
  const DeltaShape shape =
      delta_shape(delta, y[0], units, kStrips, TileFetch<2 * kStrips>::kWarpBytes, library_of(stream).multiprocessors);
  with_one_delta(delta, shape, y[0], [&](const OneDelta& source, dim3 grid) {
    with_groups<OneDelta>(shape, [&](auto groups) {
      constexpr auto kKernel = expand_strips<groups.value>;
      allow_shared<kKernel>(kMostDeltaShared);
      launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream_of(stream), source, data_of<bf16>(y),
                   static_cast<int>(y.row_stride), shape.groups, shape.across);
    });
  });
  return true;
}

}  // namespace lockstep::kernels::cuda
