// SwiGLU of a product that still lacks its adapter's part: one pass over gate and up instead of two.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

__device__ __forceinline__ uint32_t swiglu_2(uint32_t gate, uint32_t up) {
  return pack_bf16(swiglu(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
                   swiglu(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
}

// A warp has kStrips strips of gate and the same of up; width is a multiple of its columns, and all rows begin at 16
// bytes. kGroups as in LaneInput.
template <int kStrips, int kGroups, class Source>
__global__ void __launch_bounds__(256, kStrips == 1 ? 3 : 2)
    swiglu_delta_kernel(const __grid_constant__ Source source, Matrix y, Matrix gate_up, int width, int all_groups,
                        int across, bool keep) {
  constexpr int kColumns = kStrips * kStripColumns;
  extern __shared__ uint4 shared[];  // [across][gate, up][strips][groups][64], then of the warps' fetches
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) { return (static_cast<int>(blockIdx.x) * across + w) * kColumns; };
  let_next_begin();
  for (int i = warp; i < 2 * across * kStrips * groups; i += warps) {
    const int strip = i / groups % kStrips, part = i / groups / kStrips % 2,
              column = column_of(i / groups / kStrips / 2);
    if (column >= width) break;
    store_strip(shared + 64 * i, source.columns(column + strip * kStripColumns + part * width), i % groups, lane);
  }
  const int column0 = column_of(warp % across), column = column0 + lane % 4 * 8;
  const DeltaColumns pair[2] = {source.columns(column0), source.columns(column0 + width)};
  const LaneInput<kGroups, Source::kPaired> input[2] = {{source.source, pair[0], lane}, {source.source, pair[1], lane}};
  const LaneRows<bf16> gate_rows(gate_up.data, gate_up.stride, column), y_rows(y.data, y.stride, column);
  const LaneRows<bf16> up_rows(gate_up.data, gate_up.stride, column + width);
  const uint4* const strips = shared + warp % across * 2 * kStrips * groups * 64;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, step = warps / across * kStripRows;
  __syncthreads();
  wait_for_previous();
  if (column0 >= width) return;

  TileFetch<4 * kStrips> ahead(
      shared + across * 2 * kStrips * groups * 64 + warp * TileFetch<4 * kStrips>::kWarpBytes / 16, lane);
  const auto row_of = [&](int row0, int r) { return min(row0 + lane / 4 + 8 * r, rows.end - 1); };
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bf16 *const gate = gate_rows.at(row_of(row0, r)), *const up = up_rows.at(row_of(row0, r));
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          fetch(2 * (r * kStrips + s), gate + s * kStripColumns);
          fetch(2 * (r * kStrips + s) + 1, up + s * kStripColumns);
        }
      }
    };
  };
  if (first < rows.end) ahead.begin(copies_of(first));
  for (int row0 = first; row0 < rows.end; row0 += step) {
    const int row[2] = {row_of(row0, 0), row_of(row0, 1)};
    ahead.turn(row0 + step < rows.end, copies_of(row0 + step));
    Eight x[2][2][kStrips];  // [gate, up][row]
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int part = 0; part < 2; ++part) x[part][r][s].vector = ahead.piece(2 * (r * kStrips + s) + part);
#pragma unroll
    for (int part = 0; part < 2; ++part)
      add_to_strips<kStrips>(x[part], input[part], pair[part], strips + part * kStrips * groups * 64, groups, row,
                             lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row0 + lane / 4 + 8 * r >= rows.end || (rows.without >> (lane / 4 + 8 * r) & 1) != 0) continue;
      bf16 *const to = y_rows.at(row[r]), *const kept[2] = {gate_rows.at(row[r]), up_rows.at(row[r])};
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const uint4 gate = x[0][r][s].vector, up = x[1][r][s].vector;
        *reinterpret_cast<uint4*>(to + s * kStripColumns) =
            make_uint4(swiglu_2(gate.x, up.x), swiglu_2(gate.y, up.y), swiglu_2(gate.z, up.z), swiglu_2(gate.w, up.w));
#pragma unroll
        for (int part = 0; part < 2; ++part)
          if (keep && pair[part].any())
            *reinterpret_cast<uint4*>(kept[part] + s * kStripColumns) = x[part][r][s].vector;
      }
    }
  }
}

// Whether what a strip of gate and of up lacks is one pair's.
bool pairs_fit(std::span<const LoraPair> pairs, int64_t width) {
  if (pairs.size() > 2) return false;
  for (const LoraPair& pair : pairs)
    if (pair.out_begin % width != 0 || pair.b[1] % width != 0) return false;
  return true;
}

}  // namespace

bool swiglu_forward(Tensor y, Tensor gate_up, const PendingDelta& delta, bool keep, Stream& stream) {
  const int64_t rows = y.shape[0], width = y.shape[1];
  if (rows == 0 || width == 0 || width % (2 * kStripColumns) != 0 || !rows_aligned(y) || !rows_aligned(gate_up))
    return false;
  if (!reads_well(delta) || !pairs_fit(delta.pairs, width)) return false;
  const auto start = [&](auto strips) {
    const DeltaShape shape = delta_shape(delta, rows, width / (strips.value * kStripColumns), 2 * strips.value,
                                         TileFetch<4 * strips.value>::kWarpBytes, library_of(stream).multiprocessors);
    with_delta(delta, shape, rows, [&](const auto& source, dim3 grid) {
      using Source = std::decay_t<decltype(source)>;
      with_groups<Source>(shape, [&](auto groups) {
        constexpr auto kKernel = swiglu_delta_kernel<strips.value, groups.value, Source>;
        allow_shared<kKernel>(kMostDeltaShared);
        launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream_of(stream), source, Matrix(y),
                     Matrix(gate_up), static_cast<int>(width), shape.groups, shape.across, keep);
      });
    });
  };
  rows <= kFewDeltaRows || delta.tiles.num_tiles > 0 ? start(std::integral_constant<int, 1>())
                                                     : start(std::integral_constant<int, 2>());
  check_launch("swiglu_forward", {y, gate_up});
  return true;
}

}  // namespace lockstep::kernels::cuda
