// SwiGLU, forward and backward, of values whose LoRA delta has not been added yet: one pass over them instead of two.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

// A warp has a strip of gate and the same of up; width is a multiple of its columns, and all rows are aligned to
// 16 bytes. kGroups as in LaneInput.
template <int kGroups, class Source>
__global__ void __launch_bounds__(256, 3)
    swiglu_delta_kernel(const __grid_constant__ Source source, Matrix y, Matrix gate_up, int width, int all_groups,
                        int across, bool keep) {
  extern __shared__ uint4 shared[];  // [across][gate, up][groups][kStripPieces], then the warps' copies
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) { return (static_cast<int>(blockIdx.x) * across + w) * kStripColumns; };
  let_next_begin();
  for (int i = warp; i < 2 * across * groups; i += warps) {
    const int part = i / groups % 2, column = column_of(i / groups / 2);
    if (column >= width) break;
    store_strip(shared + kStripPieces * i, source.columns(column + part * width + lane / 4 * 8), i % groups, lane);
  }
  const int column0 = column_of(warp % across), column = column0 + lane % 8 * 8;
  const DeltaColumns pair[2] = {source.columns(column0), source.columns(column0 + width)};
  LaneInput<kGroups, Source::kPaired> input[2] = {{source.source, pair[0], lane}, {source.source, pair[1], lane}};
  const LaneRows<bf16> gate_rows(gate_up.data, gate_up.stride, column), y_rows(y.data, y.stride, column);
  const uint4* const strips = shared + warp % across * 2 * groups * kStripPieces;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, last = rows.end - 1;
  __syncthreads();
  wait_for_previous();
  if (column0 >= width || first >= rows.end) return;

  TileFetch<2> ahead(shared + across * 2 * groups * kStripPieces + warp * TileFetch<2>::kWarpBytes / 16, lane);
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
      fetch(0, [&](int r) { return gate_rows.at(min(row0 + r, last)); });
      fetch(1, [&](int r) { return gate_rows.at(min(row0 + r, last)) + width; });
    };
  };
  const auto fetch_ranks = [&](int row0) {
    input[0].fetch(min(row0 + lane / 4, last)), input[1].fetch(min(row0 + lane / 4, last));
  };
  ahead.begin(copies_of(first));
  fetch_ranks(first);
  for (int row0 = first; row0 < rows.end; row0 += rows.step) {
    const bool more = row0 + rows.step < rows.end;
    ahead.advance(more, copies_of(row0 + rows.step));
    Eight x[2][2];  // [gate, up][row]
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      x[part][0].vector = ahead.get(part, 0), x[part][1].vector = ahead.get(part, 1);
      add_strip(x[part][0], x[part][1], input[part], pair[part], strips + part * groups * kStripPieces, groups,
                min(row0 + lane / 4, last), lane);
    }
    if (more) fetch_ranks(row0 + rows.step);
    const auto store = [&](int part, const auto& address) {
      ahead.store(part, [&](int r, uint4 value) {
        if (rows.has(row0 + r)) *reinterpret_cast<uint4*>(address(row0 + r)) = value;
      });
    };
    if (keep) {
#pragma unroll
      for (int part = 0; part < 2; ++part) ahead.put(part, 0, x[part][0].vector), ahead.put(part, 1, x[part][1].vector);
      __syncwarp();
      if (pair[0].any()) store(0, [&](int row) { return gate_rows.at(row); });
      if (pair[1].any()) store(1, [&](int row) { return gate_rows.at(row) + width; });
      __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 gate = x[0][r].vector, up = x[1][r].vector;
      ahead.put(
          0, r,
          make_uint4(swiglu_2(gate.x, up.x), swiglu_2(gate.y, up.y), swiglu_2(gate.z, up.z), swiglu_2(gate.w, up.w)));
    }
    __syncwarp();
    store(0, [&](int row) { return y_rows.at(row); });
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

// A warp has one strip of dy, gate and up; otherwise as swiglu_delta_kernel. A warp has read its rows before it writes
// them, so the gradients may overwrite gate and up.
template <int kGroups>
__global__ void __launch_bounds__(256, 3)
    swiglu_grad_delta_kernel(const __grid_constant__ OneDelta source, Matrix d_gate_up, Matrix dy, Matrix gate_up,
                             int width, int all_groups, int across) {
  extern __shared__ uint4 shared[];  // [across][groups][kStripPieces], then the warps' copies
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const auto column_of = [&](int w) { return (static_cast<int>(blockIdx.x) * across + w) * kStripColumns; };
  let_next_begin();
  for (int i = warp; i < across * groups; i += warps) {
    if (column_of(i / groups) >= width) break;
    store_strip(shared + kStripPieces * i, source.columns(column_of(i / groups) + lane / 4 * 8), i % groups, lane);
  }
  const int column0 = column_of(warp % across), column = column0 + lane % 8 * 8;
  const DeltaColumns pair = source.columns(column0);
  LaneInput<kGroups, true> input(source.source, pair, lane);
  const LaneRows<bf16> dy_rows(dy.data, dy.stride, column), gate_rows(gate_up.data, gate_up.stride, column),
      d_gate_rows(d_gate_up.data, d_gate_up.stride, column);
  const uint4* const strips = shared + warp % across * groups * kStripPieces;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, last = rows.end - 1;
  __syncthreads();
  wait_for_previous();
  if (column0 >= width || first >= rows.end) return;

  TileFetch<3> ahead(shared + across * groups * kStripPieces + warp * TileFetch<3>::kWarpBytes / 16, lane);
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
      fetch(0, [&](int r) { return dy_rows.at(min(row0 + r, last)); });
      fetch(1, [&](int r) { return gate_rows.at(min(row0 + r, last)); });
      fetch(2, [&](int r) { return gate_rows.at(min(row0 + r, last)) + width; });
    };
  };
  ahead.begin(copies_of(first));
  input.fetch(min(first + lane / 4, last));
  for (int row0 = first; row0 < rows.end; row0 += rows.step) {
    const bool more = row0 + rows.step < rows.end;
    ahead.advance(more, copies_of(row0 + rows.step));
    Eight grad[2];
    grad[0].vector = ahead.get(0, 0), grad[1].vector = ahead.get(0, 1);
    add_strip(grad[0], grad[1], input, pair, strips, groups, min(row0 + lane / 4, last), lane);
    if (more) input.fetch(min(row0 + rows.step + lane / 4, last));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Eight gate, up;
      gate.vector = ahead.get(1, r), up.vector = ahead.get(2, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) swiglu_gradient_2(gate.word[i], up.word[i], grad[r].word[i]);
      ahead.put(1, r, gate.vector), ahead.put(2, r, up.vector);
    }
    __syncwarp();
#pragma unroll
    for (int part = 0; part < 2; ++part)
      ahead.store(1 + part, [&](int r, uint4 value) {
        if (row0 + r < rows.end) *reinterpret_cast<uint4*>(d_gate_rows.at(row0 + r) + part * width) = value;
      });
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
  if (rows == 0 || width == 0 || width % kStripColumns != 0 || !rows_aligned(y) || !rows_aligned(gate_up)) return false;
  if (!reads_well(delta) || !pairs_fit(delta.pairs, width)) return false;
  const DeltaShape shape =
      delta_shape(delta, rows, width / kStripColumns, 2, TileFetch<2>::kWarpBytes, library_of(stream).multiprocessors);
  with_delta(delta, shape, rows, [&](const auto& source, dim3 grid) {
    using Source = std::decay_t<decltype(source)>;
    with_groups<Source>(shape, [&](auto groups) {
      constexpr auto kKernel = swiglu_delta_kernel<groups.value, Source>;
      allow_delta_shared<kKernel>();
      launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream_of(stream), source, Matrix(y),
                   Matrix(gate_up), static_cast<int>(width), shape.groups, shape.across, keep);
    });
  });
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
      delta_shape(delta, rows, width / kStripColumns, 1, TileFetch<3>::kWarpBytes, library_of(stream).multiprocessors);
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
