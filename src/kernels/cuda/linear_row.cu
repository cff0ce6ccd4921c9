// Products of one row on compute capability 9.0: the ring of linear_ring.cu for the weights alone. The row lies in
// shared memory once; the block's warps bring it, or compute its norm, while the weights are already on their way.
//
// Here the row is one of 64 of wgmma's first operand, which comes from registers, and the outputs are its columns: a
// step of the chain reads the weights alone, so that blocks of several products that wait in one multiprocessor do not
// slow each other down. What the other 63 rows give is dropped.
//
#include <algorithm>
#include <array>

#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/rmsnorm.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = kWarpgroup + 32;
constexpr int kPartColumns = kWarpgroup * 8 * kNormPieces;
constexpr uint32_t kBlockShared = (113 << 10) - 256;  // two blocks, their static memory, and 1 KiB each of the system's

struct Launch {
  RowProduct row;
  int steps = 0, stages = 0;
  uint32_t row_bytes = 0;
};

[[maybe_unused]] __device__ __forceinline__ void sync_warpgroup() {
  asm volatile("bar.sync 1, 128;\n" ::: "memory");
}
// Where a thread finds its part of the first operand: of 64 columns, 32 bytes for each of the four lanes that hold the
// row; of 16 columns, lane t has columns 2t, 2t + 1, 2t + 8 and 2t + 9. `column` is a multiple of 8.
__device__ __forceinline__ uint32_t place_of(int column, int t) {
  return column / kBoxColumns * 128 + t * 32 + column % kBoxColumns / 8 * 4;
}
[[maybe_unused]] __device__ __forceinline__ void store_columns(uint32_t row, int column, uint4 packed) {
  const uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int t = 0; t < 4; ++t)
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(row + place_of(column, t)), "r"(word[t]) : "memory");
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
      store_columns(
          to, column_of(part, j),
          make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])));
    }
  }
}

// The row as it is; kParts pieces of kPartColumns.
template <int kParts>
__device__ void put_plain(uint32_t to, int padded, const RowProduct& row, int thread) {
  const int width = static_cast<int>(row.product.x.cols);
  const auto column_of = [&](int j) { return 8 * (thread + j * kWarpgroup); };
  uint4 input[kParts * kNormPieces];
  wait_for_previous();
#pragma unroll
  for (int j = 0; j < kParts * kNormPieces; ++j)
    input[j] = load_bf16x8(row.product.x.data + column_of(j), width - column_of(j), true);
#pragma unroll
  for (int j = 0; j < kParts * kNormPieces; ++j)
    if (column_of(j) < padded) store_columns(to, column_of(j), input[j]);
}

template <int kParts>
__device__ void put_row(uint32_t to, int padded, const RowProduct& row, int warp, int lane) {
  if (!row.norm_weight) return put_plain<kParts>(to, padded, row, 32 * warp + lane);
  if constexpr (kParts > 1)
    put_normed<512>(to, padded, row, warp, lane);
  else if (row.product.x.cols <= 32 * 8 * kNormPieces)
    put_normed<32>(to, padded, row, warp, lane);
  else
    put_normed<128>(to, padded, row, warp, lane);
}

// ---- the chain ----

#define LOCKSTEP_SUMS(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define LOCKSTEP_SUMS_4(d, j) \
  LOCKSTEP_SUMS(d, j), LOCKSTEP_SUMS(d, j + 1), LOCKSTEP_SUMS(d, j + 2), LOCKSTEP_SUMS(d, j + 3)
#define LOCKSTEP_STEP(outputs, sums, a0, a1, a2, a3, b)                                                            \
  "wgmma.mma_async.sync.aligned.m64n" outputs "k16.f32.bf16.bf16 {" sums "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b \
  ", 1, 1, 1, 0;\n"
// d += a w^T, 64 rows x 8 kTiles outputs x 16 of the contraction; of a thread's rows the second is always 0.
[[maybe_unused]] __device__ __forceinline__ void row_step(float (&d)[1][4], const uint32_t (&a)[2], uint64_t w) {
  asm volatile(LOCKSTEP_STEP("8", "%0, %1, %2, %3", "%4", "%6", "%5", "%6", "%7")
               : LOCKSTEP_SUMS(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(0), "l"(w));
}
[[maybe_unused]] __device__ __forceinline__ void row_step(float (&d)[2][4], const uint32_t (&a)[2], uint64_t w) {
  asm volatile(LOCKSTEP_STEP("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%10", "%9", "%10", "%11")
               : LOCKSTEP_SUMS(d, 0), LOCKSTEP_SUMS(d, 1)
               : "r"(a[0]), "r"(a[1]), "r"(0), "l"(w));
}
[[maybe_unused]] __device__ __forceinline__ void row_step(float (&d)[4][4], const uint32_t (&a)[2], uint64_t w) {
  asm volatile(LOCKSTEP_STEP("32", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%18",
                             "%17", "%18", "%19")
               : LOCKSTEP_SUMS_4(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(0), "l"(w));
}
[[maybe_unused]] __device__ __forceinline__ void row_step(float (&d)[6][4], const uint32_t (&a)[2], uint64_t w) {
  asm volatile(LOCKSTEP_STEP("48",
                             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                             "%16, %17, %18, %19, %20, %21, %22, %23",
                             "%24", "%26", "%25", "%26", "%27")
               : LOCKSTEP_SUMS_4(d, 0), LOCKSTEP_SUMS(d, 4), LOCKSTEP_SUMS(d, 5)
               : "r"(a[0]), "r"(a[1]), "r"(0), "l"(w));
}
[[maybe_unused]] __device__ __forceinline__ void row_step(float (&d)[8][4], const uint32_t (&a)[2], uint64_t w) {
  asm volatile(LOCKSTEP_STEP("64",
                             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
                             "%32", "%34", "%33", "%34", "%35")
               : LOCKSTEP_SUMS_4(d, 0), LOCKSTEP_SUMS_4(d, 4)
               : "r"(a[0]), "r"(a[1]), "r"(0), "l"(w));
}
#undef LOCKSTEP_STEP
#undef LOCKSTEP_SUMS_4
#undef LOCKSTEP_SUMS

// The row's part of a stage; 0 in threads that hold none of it.
template <int kBoxes>
struct RowPart {
  uint32_t a[4 * kBoxes][2] = {};

  __device__ __forceinline__ void load(uint32_t from, bool holds) {
    if (!holds) return;
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(a[4 * b + 2 * half][0]), "=r"(a[4 * b + 2 * half][1]), "=r"(a[4 * b + 2 * half + 1][0]),
                       "=r"(a[4 * b + 2 * half + 1][1])
                     : "r"(from + b * 128 + half * 16));
  }
};

template <class S>
__device__ __forceinline__ void walk_row(float (&acc)[S::kRows / 8][4], int steps, CopyRing ring, uint32_t row,
                                         int warp, int lane) {
  const bool holds = warp == 0 && lane < 4;
  uint32_t from = row + lane * 32, walked = 0;  // the barrier of the stage before
  RowPart<S::kBoxes> part[2];
  part[0].load(from, holds);
  const auto walk = [&](const RowPart<S::kBoxes>& now, RowPart<S::kBoxes>& next, bool more) {
    barrier_wait(ring.full(), ring.parity);
    begin_products();
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
#pragma unroll
      for (int k = 0; k < kBoxColumns / 16; ++k)
        row_step(acc, now.a[4 * b + k], descriptor(ring.at() + b * S::kWBytes) + column_step(k));
    commit_products();
    wait_products<1>();
    if (walked && lane == 0) barrier_arrive(walked);
    walked = ring.empty();
    ring.next();
    from += S::kBoxes * 128;
    if (more) next.load(from, holds);
  };
  for (int step = 0; step < steps; step += 2) {
    walk(part[0], part[1], step + 1 < steps);
    if (step + 1 < steps) walk(part[1], part[0], step + 2 < steps);
  }
  wait_products<0>();
  pin(acc);
}

// The first four threads hold the outputs: acc[j][e] is output 8 j + 2 lane + e.
template <class S, bool kSwiglu>
__device__ void multiply(const Launch& l, int64_t first, uint32_t row, const CopyRing& ring, int warp, int lane) {
  constexpr int kTiles = S::kRows / 8, kStored = kSwiglu ? kTiles / 2 : kTiles;
  const Product& p = l.row.product;
  const int64_t outputs = kSwiglu ? p.outputs / 2 : p.outputs;
  const auto output_of = [&](int j, int e) { return first + 8 * j + 2 * lane + e; };
  const auto stored = [&](int j, int e) { return warp == 0 && lane < 4 && output_of(j, e) < outputs; };
  float acc[kTiles][4] = {}, residual[kSwiglu ? 1 : kTiles][2] = {};
  // Asked for before the chain, so that its end does not wait for memory.
  if constexpr (!kSwiglu)
    if (p.end.residual) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (stored(j, e)) residual[j][e] = p.end.residual_at(0, output_of(j, e));
    }
  walk_row<S>(acc, l.steps, ring, row, warp, lane);
#pragma unroll
  for (int j = 0; j < kStored; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (!stored(j, e)) continue;
      const int64_t output = output_of(j, e);
      if constexpr (kSwiglu) {
        float gate = acc[2 * j][e], up = acc[2 * j + 1][e];
        if (p.end.bias) gate = __fadd_rn(gate, p.end.bias[output]), up = __fadd_rn(up, p.end.bias[outputs + output]);
        static_cast<bf16*>(p.end.y)[output] = swiglu_of_sums(gate, up);
      } else {
        float value = acc[j][e];
        if (p.end.bias) value = __fadd_rn(value, p.end.bias[output]);
        if (p.end.residual) value = __fadd_rn(value, residual[j][e]);
        p.end.store(0, output, value);
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

template <class S, bool kSwiglu, int kParts>
__global__ void __launch_bounds__(kThreads)
    row_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ Launch l) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(blockIdx.x) * (kSwiglu ? S::kRows / 2 : S::kRows);
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = l.stages,
                        .slack_bytes = l.row_bytes};
    const uint32_t row = ring.shared + l.stages * S::kStageBytes;
    let_next_begin();
    if (warp == kWarpgroup / 32) {
      WeightLoader<S> loader{.map = w, .group = first / 8, .steps = l.steps, .ring = ring};
      if (lane == 0) loader.start();
      __syncthreads();
      if (lane == 0) loader.go_on();
      return;
    }
    put_row<kParts>(row, l.steps * S::kBoxes * kBoxColumns, l.row, warp, lane);
    __syncthreads();
    multiply<S, kSwiglu>(l, first, row, ring, warp, lane);
  } else {
    __trap();
  }
}

// False: too little shared memory for a row of this width.
template <class S, bool kSwiglu, int kParts>
bool launch_parts(const RowProduct& row, cudaStream_t stream) {
  const Product& p = row.product;
  constexpr int64_t kStageColumns = S::kBoxes * kBoxColumns;
  const int64_t steps = (p.x.cols + kStageColumns - 1) / kStageColumns, row_bytes = steps * kStageColumns * 2;
  const int64_t fixed = 1024 + row_bytes + CopyRing::kBarrierBytes;
  const int64_t room = (int64_t{kBlockShared} - fixed) / S::kStageBytes;
  const int64_t stages = std::min({steps, room, int64_t{CopyRing::kMostStages}});
  if (stages < std::min<int64_t>(steps, 3)) return false;
  allow_shared<row_kernel<S, kSwiglu, kParts>>(kBlockShared);
  const Launch arguments{.row = row,
                         .steps = static_cast<int>(steps),
                         .stages = static_cast<int>(stages),
                         .row_bytes = static_cast<uint32_t>(row_bytes)};
  const auto blocks = static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows);
  launch_early(row_kernel<S, kSwiglu, kParts>, blocks, kThreads, static_cast<size_t>(fixed + stages * S::kStageBytes),
               stream, slab_map(p.w, S::kRows, S::kBoxes, kSwiglu), arguments);
  check_launch("linear");
  return true;
}
template <class S, bool kSwiglu>
bool launch(const RowProduct& row, cudaStream_t stream) {
  return row.product.x.cols <= kPartColumns ? launch_parts<S, kSwiglu, 1>(row, stream)
                                            : launch_parts<S, kSwiglu, kWidestNorm / kPartColumns>(row, stream);
}

struct RowKernel {
  int rows;
  bool (*launch)(const RowProduct&, cudaStream_t);
};
template <int kRows, int kBoxes, bool kSwiglu>
constexpr RowKernel kernel_of() {
  return {kRows, launch<Shape<8, kRows, kBoxes, false>, kSwiglu>};
}
constexpr std::array kPlain = {kernel_of<8, 4, false>(), kernel_of<16, 4, false>(), kernel_of<32, 4, false>(),
                               kernel_of<48, 2, false>(), kernel_of<64, 2, false>()};
constexpr std::array kSwiglu = {kernel_of<16, 4, true>(), kernel_of<32, 2, true>(), kernel_of<48, 2, true>(),
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
