// Products of one row on compute capability 9.0: the ring of linear_ring.cu for the weights alone. The row lies in
// shared memory once; the block's warps bring it, or compute its norm, while the weights are already on their way.
//
// wgmma wants 8 tokens. Without a swizzle, 8 columns of 8 tokens are 128 bytes that follow each other, and 8 columns
// further may lie anywhere: here 16 bytes further, so that the row lies as in memory, and the 7 other tokens are the
// columns that follow. What they give is dropped.
//
// A block takes less than half of a multiprocessor's shared memory, so that blocks of the next product find room and
// fetch their weights while these still wait and multiply.
#include <algorithm>
#include <array>

#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/rmsnorm.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = kWarpgroup + 32;
constexpr uint32_t kBlockShared = (113 << 10) - 256;  // two blocks, their static memory, and 1 KiB each of the system's

struct Launch {
  RowProduct row;
  int steps = 0, stages = 0;
  uint32_t slack_bytes = 0;  // after the last stage: holds the row
};

__device__ __forceinline__ void sync_warpgroup() {
  asm volatile("bar.sync 1, 128;\n" ::: "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, const float (&v)[8]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(pack_bf16(v[0], v[1])),
               "r"(pack_bf16(v[2], v[3])), "r"(pack_bf16(v[4], v[5])), "r"(pack_bf16(v[6], v[7]))
               : "memory");
}

// The row's norm with the threads that rmsnorm.cu gives it: the four warps stand for 16, or each of them for the one,
// and writes its quarter. Zeros from the row's end to `padded`.
template <int kRowThreads>
__device__ void put_normed(uint32_t to, int padded, const RowProduct& row, int warp, int lane) {
  constexpr bool kOneWarp = kRowThreads == 32;
  constexpr int kParts = kOneWarp ? 1 : kRowThreads / kWarpgroup;
  __shared__ float sums[kRowThreads / 32];
  const bf16* const x = row.product.x.data;
  const int width = static_cast<int>(row.product.x.cols), thread = kOneWarp ? lane : 32 * warp + lane;
  const auto column_of = [&](int part, int j) { return 8 * (thread + part * kWarpgroup + j * kRowThreads); };
  const auto mine = [&](int j) { return !kOneWarp || j == warp; };
  uint4 input[kParts][kNormPieces];
  float weight[kNormPieces][8];
  const auto load_weights = [&](int part) {
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j)
      if (mine(j)) load8(weight[j], row.norm_weight + column_of(part, j), width - column_of(part, j), true);
  };
  load_weights(0);
  wait_for_previous();
#pragma unroll
  for (int part = 0; part < kParts; ++part)
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j)
      input[part][j] = load_bf16x8(x + column_of(part, j), width - column_of(part, j), true);
  float sum = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) squares = add_squares(squares, input[part][j]);
    sum = warp_sum(squares);
    if (!kOneWarp && lane == 0) sums[part * 4 + warp] = sum;
  }
  if constexpr (!kOneWarp) {
    sync_warpgroup();
    sum = sums[0];
#pragma unroll
    for (int w = 1; w < kRowThreads / 32; ++w) sum = __fadd_rn(sum, sums[w]);
  }
  const float rstd = rstd_of(sum, width, row.norm_eps);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (part > 0) load_weights(part);
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      if (!mine(j) || column_of(part, j) >= padded) continue;
      float v[8];
      normed(v, input[part][j], rstd, weight[j]);
      store_shared(to + 2 * column_of(part, j), v);
    }
  }
}

[[maybe_unused]] __device__ void put_row(uint32_t to, int padded, const RowProduct& row, int warp, int lane) {
  const int width = static_cast<int>(row.product.x.cols);
  if (!row.norm_weight) {
    wait_for_previous();
    for (int column = 8 * (32 * warp + lane); column < padded; column += 8 * kWarpgroup)
      copy_async_16(to + 2 * column, row.product.x.data + (column < width ? column : 0), column < width);
    copy_commit();
    copy_wait<0>();
  } else if (width <= 32 * 8 * kNormPieces) {
    put_normed<32>(to, padded, row, warp, lane);
  } else if (width <= 128 * 8 * kNormPieces) {
    put_normed<128>(to, padded, row, warp, lane);
  } else {
    put_normed<512>(to, padded, row, warp, lane);
  }
  fence_for_products();
}

// 16 columns of the row as 8 tokens.
[[maybe_unused]] __device__ __forceinline__ uint64_t row_descriptor(uint32_t at) {
  return uint64_t{1} << 32 | uint64_t{1} << 16 | (at & 0x3ffff) >> 4;
}

template <class S, bool kSwiglu>
__device__ void multiply(const Launch& l, int64_t first, uint32_t row, const CopyRing& ring, int warp, int lane) {
  const Product& p = l.row.product;
  const bool first_token = lane % 4 == 0;
  float acc[1][4] = {};
  const auto row_of = [&](const CopyRing&, int step, int box) {
    return row_descriptor(row + (step * S::kBoxes + box) * kBoxColumns * 2);
  };
  if constexpr (kSwiglu) {
    const int64_t gate = first + 8 * warp + lane / 4, up = p.outputs / 2 + gate;
    const bool stored = first_token && 16 * warp < S::kRows && up < p.outputs;
    float bias[2] = {};
    if (stored && p.end.bias) bias[0] = p.end.bias[gate], bias[1] = p.end.bias[up];
    walk_ring<S>(acc, l.steps, ring, lane, row_of);
    if (!stored) return;
    if (p.end.bias) acc[0][0] = __fadd_rn(acc[0][0], bias[0]), acc[0][2] = __fadd_rn(acc[0][2], bias[1]);
    static_cast<bf16*>(p.end.y)[gate] = swiglu_of_sums(acc[0][0], acc[0][2]);
  } else {
    const int64_t output = first + 16 * warp + lane / 4, end = min(p.outputs, first + S::kRows);
    float bias[2] = {}, residual[2] = {};
    // Asked for before the chain, so that its end does not wait for memory.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!first_token || output + 8 * i >= end) continue;
      if (p.end.bias) bias[i] = p.end.bias[output + 8 * i];
      if (p.end.residual) residual[i] = p.end.residual_at(0, output + 8 * i);
    }
    walk_ring<S>(acc, l.steps, ring, lane, row_of);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!first_token || output + 8 * i >= end) continue;
      float value = acc[0][2 * i];
      if (p.end.bias) value = __fadd_rn(value, bias[i]);
      if (p.end.residual) value = __fadd_rn(value, residual[i]);
      p.end.store(0, output + 8 * i, value);
    }
  }
}

// By one thread. The first stages need no word from anybody.
template <class S>
struct WeightLoader {
  const CUtensorMap& map;
  int group, steps, step = 0;
  CopyRing ring;

  __device__ void load() {
    barrier_expect(ring.full(), S::kStageBytes);
    copy_slabs(ring.at(), map, group, step * S::kBoxes, ring.full());
    ++step, ring.next();
  }
  __device__ void start() {
    prefetch_map(map);
    ring.init(kWarpgroup / 32);
    for (const int first = min(steps, ring.stages); step < first;) load();
  }
  __device__ void go_on() {
    while (step < steps) {
      barrier_wait(ring.empty(), ring.parity ^ 1);
      load();
    }
  }
};

template <class S, bool kSwiglu>
__global__ void __launch_bounds__(kThreads)
    row_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ Launch l) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(blockIdx.x) * (kSwiglu ? S::kRows / 2 : S::kRows);
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = l.stages,
                        .slack_bytes = l.slack_bytes};
    const uint32_t row = ring.shared + l.stages * S::kStageBytes;
    let_next_begin();
    if (warp == kWarpgroup / 32) {
      WeightLoader<S> loader{.map = w, .group = first / 8, .steps = l.steps, .ring = ring};
      if (lane == 0) loader.start();
      __syncthreads();
      if (lane == 0) loader.go_on();
      return;
    }
    put_row(row, l.steps * S::kBoxes * kBoxColumns, l.row, warp, lane);
    __syncthreads();
    multiply<S, kSwiglu>(l, first, row, ring, warp, lane);
  } else {
    __trap();
  }
}

// False: too little shared memory for a row of this width.
template <class S, bool kSwiglu>
bool launch(const RowProduct& row, cudaStream_t stream) {
  const Product& p = row.product;
  constexpr int64_t kStageColumns = S::kBoxes * kBoxColumns;
  const int64_t steps = (p.x.cols + kStageColumns - 1) / kStageColumns, row_bytes = steps * kStageColumns * 2;
  const int64_t slack = std::max<int64_t>(S::kSlackBytes, row_bytes);
  const int64_t fixed = 1024 + slack + CopyRing::kBarrierBytes;
  const int64_t room = (int64_t{kBlockShared} - fixed) / S::kStageBytes;
  const int64_t stages = std::min({steps, room, int64_t{CopyRing::kMostStages}});
  if (stages < std::min<int64_t>(steps, 3)) return false;
  allow_shared<row_kernel<S, kSwiglu>>(kBlockShared);
  const Launch arguments{.row = row,
                         .steps = static_cast<int>(steps),
                         .stages = static_cast<int>(stages),
                         .slack_bytes = static_cast<uint32_t>(slack)};
  const auto blocks = static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows);
  launch_early(row_kernel<S, kSwiglu>, blocks, kThreads, static_cast<size_t>(fixed + stages * S::kStageBytes), stream,
               slab_map(p.w, S::kRows, S::kBoxes, kSwiglu), arguments);
  check_launch("linear");
  return true;
}

struct RowKernel {
  int rows;
  bool (*launch)(const RowProduct&, cudaStream_t);
};
template <int kRows, int kBoxes, bool kSwiglu>
constexpr RowKernel kernel_of() {
  return {kRows, launch<Shape<8, kRows, kBoxes, false>, kSwiglu>};
}
constexpr std::array kPlain = {kernel_of<8, 8, false>(),  kernel_of<16, 8, false>(), kernel_of<24, 4, false>(),
                               kernel_of<32, 4, false>(), kernel_of<48, 4, false>(), kernel_of<64, 2, false>()};
constexpr std::array kSwiglu = {kernel_of<16, 8, true>(), kernel_of<32, 4, true>(), kernel_of<48, 4, true>(),
                                kernel_of<64, 2, true>()};

}  // namespace

bool row_product(const RowProduct& row, int multiprocessors, cudaStream_t stream) {
  const Product& p = row.product;
  if (!has_copy_engine() || p.x.rows != 1 || p.transposed || p.outputs == 0 || p.x.cols == 0 || !p.x.aligned ||
      !suits_slab_map(p.w, row.swiglu) || p.x.cols > kWidestNorm ||
      reinterpret_cast<uintptr_t>(row.norm_weight) % 16 != 0)
    return false;
  const std::span<const RowKernel> kernels = row.swiglu ? std::span<const RowKernel>(kSwiglu) : kPlain;
  const RowKernel* best = nullptr;
  for (const RowKernel& kernel : kernels)
    if (!best || 2 * ((p.outputs + kernel.rows - 1) / kernel.rows) >= multiprocessors) best = &kernel;
  return best->launch(row, stream);
}

}  // namespace lockstep::kernels::cuda
