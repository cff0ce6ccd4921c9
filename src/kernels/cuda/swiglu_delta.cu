// SwiGLU of a product that still lacks its adapter's part: one pass over gate and up instead of two.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Matrix {
  bf16* data;
  int stride;

  explicit Matrix(const Tensor& t) : data(data_of<bf16>(t)), stride(static_cast<int>(t.row_stride)) {}
  __device__ bf16* at(int row, int column) const { return data + int64_t{row} * stride + column; }
  __device__ void store(int row, int column, uint4 eight) const { *reinterpret_cast<uint4*>(at(row, column)) = eight; }
};

__device__ __forceinline__ uint32_t swiglu_2(uint32_t gate, uint32_t up) {
  return pack_bf16(swiglu(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
                   swiglu(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
}

// kGroups: of 16 ranks; 0: `groups`. width is a multiple of 8, all rows begin at 16 bytes.
template <int kGroups, class Source>
__global__ void __launch_bounds__(256, kGroups == 1 ? 3 : 2)
    swiglu_delta_kernel(const __grid_constant__ Source source, Matrix y, Matrix gate_up, int width, int all_groups,
                        int across, bool keep) {
  extern __shared__ uint4 strips[];  // [across][gate, up][groups][64]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const int strip0 = static_cast<int>(blockIdx.x) * across;
  let_next_begin();
  for (int i = warp; i < 2 * across * groups; i += warps) {
    const int half = i / groups, column = (strip0 + half / 2) * kStripColumns;
    if (column >= width) break;
    DeltaColumns columns = source.columns(column + half % 2 * width);
    columns.b.cols = min(columns.b.cols, int64_t{width - column});
    store_strip(strips + 64 * i, columns, i % groups, lane);
  }
  const int column0 = (strip0 + warp % across) * kStripColumns, column = column0 + lane % 4 * 8;
  const DeltaColumns pair[2] = {source.columns(column0), source.columns(column0 + width)};
  const uint4* const strip = strips + warp % across * 2 * groups * 64;
  const DeltaRows rows = source.my_rows();
  const int inside = column < width ? column : 0;
  __syncthreads();
  wait_for_previous();

  for (int row0 = rows.begin + warp / across * kStripRows; row0 < rows.end; row0 += warps / across * kStripRows) {
    const int row = row0 + lane / 4;
    Eight x[2][2][1];  // [gate, up][row, row + 8]
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int part = 0; part < 2; ++part)
        x[part][r][0].vector = load_once(gate_up.at(min(row + 8 * r, rows.end - 1), inside + part * width));
#pragma unroll
    for (int part = 0; part < 2; ++part)
      add_to_strips<1, kGroups, Source::kPaired>(x[part], source.source, pair[part], strip + part * groups * 64, groups,
                                                 row, rows.end, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (column >= width || row + 8 * r >= rows.end || (rows.without >> (lane / 4 + 8 * r) & 1) != 0) continue;
      const uint4 gate = x[0][r][0].vector, up = x[1][r][0].vector;
      y.store(
          row + 8 * r, column,
          make_uint4(swiglu_2(gate.x, up.x), swiglu_2(gate.y, up.y), swiglu_2(gate.z, up.z), swiglu_2(gate.w, up.w)));
#pragma unroll
      for (int part = 0; part < 2; ++part)
        if (keep && pair[part].any()) gate_up.store(row + 8 * r, column + part * width, x[part][r][0].vector);
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
  if (rows == 0 || width == 0 || width % 8 != 0 || !rows_aligned(y) || !rows_aligned(gate_up)) return false;
  if (!reads_well(delta) || !pairs_fit(delta.pairs, width)) return false;
  const int64_t num_strips = (width + kStripColumns - 1) / kStripColumns;
  const DeltaShape shape = delta_shape(delta, rows, num_strips, 2, library_of(stream).multiprocessors);
  with_delta(delta, shape, rows, [&](const auto& source, dim3 grid) {
    const auto start = [&](auto groups) {
      constexpr auto kKernel = swiglu_delta_kernel<groups.value, std::decay_t<decltype(source)>>;
      allow_shared<kKernel>(kMostDeltaShared);
      launch_early(kKernel, grid, shape.threads(), shape.shared_bytes, stream_of(stream), source, Matrix(y),
                   Matrix(gate_up), static_cast<int>(width), shape.groups, shape.across, keep);
    };
    shape.groups == 1 ? start(std::integral_constant<int, 1>()) : start(std::integral_constant<int, 0>());
  });
  check_launch("swiglu_forward", {y, gate_up});
  return true;
}

}  // namespace lockstep::kernels::cuda
