// SwiGLU, forward and backward, of values whose LoRA delta has not been added yet: one pass over them instead of two.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

__device__ __forceinline__ uint32_t swiglu_2(uint32_t gate, uint32_t up) {
  return pack_bf16(swiglu(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
                   swiglu(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
}

// A warp has kStrips strips of gate and the same of up; width is a multiple of its columns, and all rows are aligned to
// 16 bytes. kGroups as in LaneInput.
template <int kStrips, int kGroups, class Source>
__global__ void __launch_bounds__(256, kStrips == 1 ? 3 : 2)
    swiglu_delta_kernel(const __grid_constant__ Source source, Matrix y, Matrix gate_up, int width, int all_groups,
                        int across, bool keep) {
  constexpr int kColumns = kStrips * kStripColumns;
  extern __shared__ uint4 shared[];  // [across][gate, up][strips][groups][64], then the warps' copies
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
    ahead.advance(row0 + step < rows.end, copies_of(row0 + step));
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

// Replaces the two bf16 values of gate and of up that share a 32-bit word by their gradients.
__device__ __forceinline__ void swiglu_gradient_2(uint32_t& gate, uint32_t& up, uint32_t grad) {
  float g[2] = {__uint_as_float(gate << 16), __uint_as_float(gate & 0xffff0000u)};
  float u[2] = {__uint_as_float(up << 16), __uint_as_float(up & 0xffff0000u)};
  swiglu_gradient(g[0], u[0], __uint_as_float(grad << 16));
  swiglu_gradient(g[1], u[1], __uint_as_float(grad & 0xffff0000u));
  gate = pack_bf16(g[0], g[1]), up = pack_bf16(u[0], u[1]);
}

// A warp has one strip of dy, gate and up; otherwise as swiglu_delta_kernel. A lane reads and writes only its own
// elements, so the gradients may overwrite gate and up.
template <int kGroups>
__global__ void __launch_bounds__(256, 3)
    swiglu_grad_delta_kernel(const __grid_constant__ OneDelta source, Matrix d_gate_up, Matrix dy, Matrix gate_up,
                             int width, int all_groups, int across) {
  extern __shared__ uint4 shared[];  // [across][groups][64], then the warps' copies
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) { return (static_cast<int>(blockIdx.x) * across + w) * kStripColumns; };
  let_next_begin();
  for (int i = warp; i < across * groups; i += warps) {
    if (column_of(i / groups) >= width) break;
    store_strip(shared + 64 * i, source.columns(column_of(i / groups)), i % groups, lane);
  }
  const int column0 = column_of(warp % across), column = column0 + lane % 4 * 8;
  const DeltaColumns pair = source.columns(column0);
  const LaneInput<kGroups, true> input(source.source, pair, lane);
  const LaneRows<bf16> dy_rows(dy.data, dy.stride, column), gate_rows(gate_up.data, gate_up.stride, column),
      up_rows(gate_up.data, gate_up.stride, column + width), d_gate_rows(d_gate_up.data, d_gate_up.stride, column),
      d_up_rows(d_gate_up.data, d_gate_up.stride, column + width);
  const uint4* const strips = shared + warp % across * groups * 64;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, step = warps / across * kStripRows;
  __syncthreads();
  wait_for_previous();
  if (column0 >= width) return;

  constexpr int kPieces = 6;
  TileFetch<kPieces> ahead(shared + across * groups * 64 + warp * TileFetch<kPieces>::kWarpBytes / 16, lane);
  const auto row_of = [&](int row0, int r) { return min(row0 + lane / 4 + 8 * r, rows.end - 1); };
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        fetch(3 * r, dy_rows.at(row_of(row0, r)));
        fetch(3 * r + 1, gate_rows.at(row_of(row0, r)));
        fetch(3 * r + 2, up_rows.at(row_of(row0, r)));
      }
    };
  };
  if (first < rows.end) ahead.begin(copies_of(first));
  for (int row0 = first; row0 < rows.end; row0 += step) {
    const int row[2] = {row_of(row0, 0), row_of(row0, 1)};
    ahead.advance(row0 + step < rows.end, copies_of(row0 + step));
    Eight grad[2][1], gate[2], up[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      grad[r][0].vector = ahead.piece(3 * r), gate[r].vector = ahead.piece(3 * r + 1),
      up[r].vector = ahead.piece(3 * r + 2);
    add_to_strips<1>(grad, input, pair, strips, groups, row, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row0 + lane / 4 + 8 * r >= rows.end) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        swiglu_gradient_2(gate[r].word[i / 2][i % 2], up[r].word[i / 2][i % 2], grad[r][0].word[i / 2][i % 2]);
      *reinterpret_cast<uint4*>(d_gate_rows.at(row[r])) = gate[r].vector;
      *reinterpret_cast<uint4*>(d_up_rows.at(row[r])) = up[r].vector;
    }
  }
}

// Whether there are at most two pairs, each of which covers gate, up, or both as a whole.
bool pairs_fit(std::span<const LoraPair> pairs, int64_t width) {
  if (pairs.size() > 2) return false;
  for (const LoraPair& pair : pairs)
    if (pair.out_begin % width != 0 || pair.b[1] % width != 0) return false;
  return true;
}

}  // namespace

bool swiglu_forward(Tensor y, const UnfinishedLinear& unfinished, bool keep, Stream& stream) {
  const Tensor gate_up = unfinished.y();
  const LoraDelta& delta = unfinished.delta();
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
        allow_delta_shared<kKernel>();
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

bool swiglu_backward(Tensor d_gate_up, const UnfinishedLinear& unfinished, ConstTensor gate_up, Stream& stream) {
  const Tensor dy = unfinished.y();
  const LoraDelta& delta = unfinished.delta();
  const int64_t rows = dy.shape[0], width = dy.shape[1];
  if (rows == 0 || width == 0 || width % kStripColumns != 0 || !rows_aligned(dy) || !rows_aligned(gate_up) ||
      !rows_aligned(d_gate_up))
    return false;
  if (delta.tiles.num_tiles > 0 || delta.pairs.size() != 1 || delta.pairs[0].b[1] != width || !reads_well(delta))
    return false;
  const DeltaShape shape =
      delta_shape(delta, rows, width / kStripColumns, 1, TileFetch<6>::kWarpBytes, library_of(stream).multiprocessors);
  with_one_delta(delta, shape, rows, [&](const OneDelta& source, dim3 grid) {
    with_groups<OneDelta>(shape, [&](auto groups) {
      constexpr auto kKernel = swiglu_grad_delta_kernel<groups.value>;
      allow_delta_shared<kKernel>();
      launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream_of(stream), source, Matrix(d_gate_up),
                   Matrix(dy), Matrix(gate_up), static_cast<int>(width), shape.groups, shape.across);
    });
  });
  check_launch("swiglu_backward", {d_gate_up, dy, gate_up});
  return true;
}

}  // namespace lockstep::kernels::cuda
