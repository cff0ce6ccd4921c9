// lora_expand and lora_shrink_backward by strips of columns: y is read and written as 16 bytes, and B (or A) stays in
// shared memory while a block iterates over rows.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/lora_expand.h"

namespace lockstep::kernels::cuda {
namespace {

// The first column of unit number `unit`, when every pair's columns begin a new unit; -1 if there is no such unit.
__device__ int unit_column(const LoraSite& site, int unit) {
  for (int p = 0; p < site.count; ++p) {
    const int units = (site.pair[p].out + kStripColumns - 1) / kStripColumns;
    if (unit < units) return site.pair[p].out_begin + unit * kStripColumns;
    unit -= units;
  }
  return -1;
}

// kGroups as in LaneInput. kPairs = 0: every column belongs to one pair, and pairs begin and end at multiples of 8
// columns; otherwise each of kPairs pairs, whose number of groups is kGroups, contributes to all `cols` columns.
template <int kGroups, int kPairs>
__global__ void __launch_bounds__(256, 3)
    expand_strips(const __grid_constant__ OneDelta delta, bf16* y, int stride, int cols, int all_groups, int across) {
  extern __shared__ uint4 shared[];  // [across][pairs][groups][kStripPieces], then the warps' copies
  constexpr int kSums = kPairs > 0 ? kPairs : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) {
    const int unit = static_cast<int>(blockIdx.x) * across + w;
    if constexpr (kPairs == 0) return unit_column(delta.site, unit);
    return unit * kStripColumns < cols ? unit * kStripColumns : -1;
  };
  const auto columns_at = [&](int column, int pair) {
    if constexpr (kPairs == 0) return delta.columns(column);
    return delta.columns_of_pair(pair, column);
  };
  let_next_begin();
  for (int i = warp; i < across * kSums * groups; i += warps) {
    const int column = column_of(i / groups / kSums);
    if (column < 0) break;
    DeltaColumns columns = columns_at(column, i / groups % kSums);
    columns.b.data += lane / 4 * 8, columns.b.cols -= lane / 4 * 8;
    store_strip(shared + kStripPieces * i, columns, i % groups, lane);
  }
  const int column0 = column_of(warp % across);
  const uint4* const strips = shared + warp % across * kSums * groups * kStripPieces;
  const DeltaRows rows = delta.my_rows();
  const int first = rows.begin + warp / across * kStripRows, last = rows.end - 1;
  __syncthreads();
  wait_for_previous();
  if (column0 < 0 || first >= rows.end) return;

  const DeltaColumns columns = columns_at(column0, 0);
  using Input = LaneInput<kGroups, true>;
  Input inputs[] = {Input(delta.source, columns, lane),
                    Input(delta.source, kPairs > 1 ? columns_at(column0, 1) : columns, lane),
                    Input(delta.source, kPairs > 2 ? columns_at(column0, 2) : columns, lane)};
  const auto fetch_ranks = [&](int row0) {
#pragma unroll
    for (int p = 0; p < kSums; ++p) inputs[p].fetch(min(row0 + lane / 4, last));
  };
  const bool there = lane % 8 * 8 < columns.b.cols;
  const LaneRows<bf16> lane_rows(y, stride, column0 + (there ? lane % 8 * 8 : 0));
  TileFetch<1> ahead(shared + across * kSums * groups * kStripPieces + warp * TileFetch<1>::kWarpBytes / 16, lane);
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) { fetch(0, [&](int r) { return lane_rows.at(min(row0 + r, last)); }); };
  };
  ahead.begin(copies_of(first));
  fetch_ranks(first);
  for (int row0 = first; row0 < rows.end; row0 += rows.step) {
    const bool more = row0 + rows.step < rows.end;
    ahead.advance(more, copies_of(row0 + rows.step));
    Eight x[2];
    x[0].vector = ahead.get(0, 0), x[1].vector = ahead.get(0, 1);
    const int h_row = min(row0 + lane / 4, last);
    if constexpr (kPairs == 0) {
      add_strip(x[0], x[1], inputs[0], columns, strips, groups, h_row, lane);
    } else {
      StripSums total(inputs[0], strips, groups, h_row, lane);
#pragma unroll
      for (int p = 1; p < kPairs; ++p)
        total.add(StripSums(inputs[p], strips + p * groups * kStripPieces, groups, h_row, lane));
      total.add_to(x[0], x[1]);
    }
    if (more) fetch_ranks(row0 + rows.step);
    ahead.put(0, 0, x[0].vector), ahead.put(0, 1, x[1].vector);
    __syncwarp();
    ahead.store(0, [&](int r, uint4 value) {
      if (there && row0 + r < rows.end) *reinterpret_cast<uint4*>(lane_rows.at(row0 + r)) = value;
    });
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
    units += (pair.b[1] + kStripColumns - 1) / kStripColumns;
  }
  const DeltaShape shape =
      delta_shape(delta, y[0], units, 1, TileFetch<1>::kWarpBytes, library_of(stream).multiprocessors);
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
  const int64_t units = (dx[1] + kStripColumns - 1) / kStripColumns;
  const DeltaShape shape = delta_shape(delta, dx[0], units, static_cast<int>(pairs.size()), TileFetch<1>::kWarpBytes,
                                       library_of(stream).multiprocessors);
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
