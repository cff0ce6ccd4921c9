// h = x A and dh = dy B^T. A block keeps up to 64 rows with all their columns of h, and x streams through a ring buffer
// in shared memory that TMA fills. Compute capability 9.0.
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/lora_large.cuh"

namespace lockstep::kernels::cuda {
namespace {

[[maybe_unused]] constexpr int kDepth = 128, kUnit = 16;  // depth of a stage; columns of h per unit
constexpr int kMaxUnits = 4, kMaxPasses = 4, kMaxWarps = 4;
constexpr size_t kHalfShared = size_t{112} << 10;
constexpr uint32_t kUnitBytes = kUnit * kDepth * sizeof(bf16);

// 16 columns of h.
struct Unit {
  int map = 0, column = 0;  // tensor map and column of b
  int64_t y_begin = 0;
  int y_cols = 0;
  float scale = 1;
};
// One pass over some columns of x, for some units.
struct Pass {
  CUtensorMap x;
  int depth = 0, first_unit = 0, units = 0;
};
struct Reduce {
  Pass pass[kMaxPasses];
  CUtensorMap b[kMaxUnits];
  Unit unit[kMaxUnits * kMaxPasses];
  int num_passes = 0, warps = 0, stages = 0;
  LoraRows rows;

  __host__ __device__ uint32_t x_bytes() const { return 2 * kUnit * kDepth * warps; }
};

[[maybe_unused]] __device__ __forceinline__ int steps_of(const Pass& pass) {
  return (pass.depth + kDepth - 1) / kDepth;
}

// Called by one thread. b: boxes of 64 columns [rank][k].
__device__ void fill(const Reduce& args, CopyRing ring) {
  const int row = static_cast<int>(blockIdx.x) * kUnit * args.warps;
  bool first_round = true;
  for (int p = 0; p < args.num_passes; ++p) {
    const Pass& pass = args.pass[p];
    for (int step = 0; step < steps_of(pass); ++step) {
      const int k = step * kDepth;
      if (!first_round) barrier_wait(ring.empty(), ring.parity ^ 1);
      barrier_expect(ring.full(), args.x_bytes() + pass.units * kUnitBytes);
      for (int c = 0; c < kDepth / 64; ++c)
        copy_box(ring.at() + c * (args.x_bytes() / 2), pass.x, k + 64 * c, row, ring.full());
      for (int u = 0; u < pass.units; ++u) {
        const Unit& unit = args.unit[pass.first_unit + u];
        const uint32_t to = ring.at() + args.x_bytes() + u * kUnitBytes;
        for (int c = 0; c < kDepth / 64; ++c)
          copy_box(to + c * (kUnitBytes / 2), args.b[unit.map], k + 64 * c, unit.column, ring.full());
      }
      ring.next();
      if (ring.stage == 0) first_round = false;
    }
  }
}

// Fragments for 32 of the contraction: [group of 16] of 16 rows of x; [8 columns of h].
template <int kUnits>
struct Fragments {
  uint32_t x[2][4], b[2 * kUnits][4];

  __device__ __forceinline__ void load(const Reduce& args, uint32_t stage, int chunk, int warp, int lane) {
    const uint32_t row =
        stage + chunk / 2 * (args.x_bytes() / 2) + 128 * (kUnit * warp + lane % 16) + 16 * ((lane / 16) ^ (lane % 8));
#pragma unroll
    for (int group = 0; group < 2; ++group) load_matrices(x[group], row ^ (64 * (chunk % 2) + 32 * group));
#pragma unroll
    for (int j = 0; j < 2 * kUnits; ++j) {
      const uint32_t unit = stage + args.x_bytes() + j / 2 * kUnitBytes;
      load_matrices(b[j], (unit + chunk / 2 * (kUnitBytes / 2) + 128 * (8 * (j % 2) + lane % 8) +
                           16 * ((lane / 8) ^ (lane % 8))) ^
                              (64 * (chunk % 2)));
    }
  }
};

template <int kUnits>
__device__ void store(const Reduce& args, const Pass& pass, const float (&acc)[2 * kUnits][4], int warp, int lane) {
  const int64_t row0 = (int64_t{blockIdx.x} * args.warps + warp) * kUnit + lane / 4;
#pragma unroll
  for (int j = 0; j < 2 * kUnits; ++j) {
    if (j / 2 >= pass.units) break;
    const Unit& unit = args.unit[pass.first_unit + j / 2];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t row = row0 + e / 2 * 8;
      const int column = 8 * (j % 2) + lane % 4 * 2 + e % 2;
      if (row < args.rows.count && column < unit.y_cols)
        args.rows.y[row * args.rows.stride + unit.y_begin + column] =
            __float2bfloat16_rn(__fmul_rn(unit.scale, acc[j][e]));
    }
  }
}

// For a warp's 16 rows. The fragments of the next 32 are loaded before the current ones are multiplied.
template <int kUnits>
__device__ void multiply(const Reduce& args, CopyRing ring, int warp, int lane) {
  constexpr int kChunks = kDepth / 32;
  Fragments<kUnits> fragments[2];
  float acc[2 * kUnits][4] = {};
  barrier_wait(ring.full(), ring.parity);
  fragments[0].load(args, ring.at(), 0, warp, lane);
  for (int p = 0; p < args.num_passes; ++p) {
    const Pass& pass = args.pass[p];
    const int steps = steps_of(pass);
    for (int step = 0; step < steps; ++step) {
      const CopyRing now = ring;
      ring.next();
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        Fragments<kUnits>&f = fragments[chunk % 2], &then = fragments[1 - chunk % 2];
        if (chunk + 1 < kChunks) {
          then.load(args, now.at(), chunk + 1, warp, lane);
        } else if (step + 1 < steps || p + 1 < args.num_passes) {
          barrier_wait(ring.full(), ring.parity);
          then.load(args, ring.at(), 0, warp, lane);
        }
#pragma unroll
        for (int group = 0; group < 2; ++group)
#pragma unroll
          for (int j = 0; j < 2 * kUnits; ++j)
            mma_16816(acc[j], f.x[group], {f.b[j][2 * group], f.b[j][2 * group + 1]});
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(now.empty());
    }
    store<kUnits>(args, pass, acc, warp, lane);
#pragma unroll
    for (int j = 0; j < 2 * kUnits; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[j][e] = 0;
  }
}

template <int kUnits>
__global__ void __launch_bounds__(32 * (kMaxWarps + 1)) reduce_rows(const __grid_constant__ Reduce args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) uint8_t unaligned[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                .stage_bytes = args.x_bytes() + kUnits * kUnitBytes,
                .stages = args.stages};
  if (threadIdx.x == 0) ring.init(args.warps);
  __syncthreads();
  let_next_begin();
  if (warp == args.warps) {
    if (lane == 0) {
      wait_for_previous();
      fill(args, ring);
    }
  } else {
    wait_for_previous();
    multiply<kUnits>(args, ring, warp, lane);
  }
#endif
}

template <int kUnits>
void launch(Reduce& args, int64_t rows, int multiprocessors, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((rows + kUnit * args.warps - 1) / (kUnit * args.warps));
  // With more blocks than multiprocessors two share one: while one begins or ends, the other reads.
  const size_t most = static_cast<int>(blocks) > multiprocessors ? kHalfShared : kMaxShared;
  const size_t stage_bytes = args.x_bytes() + kUnits * kUnitBytes, fixed = 1024 + CopyRing::kBarrierBytes;
  args.stages = static_cast<int>(std::min<size_t>(CopyRing::kMaxStages, (most - fixed) / stage_bytes));
  allow_shared<reduce_rows<kUnits>>(kMaxShared);
  launch_early(reduce_rows<kUnits>, blocks, 32 * (args.warps + 1), fixed + args.stages * stage_bytes, stream, args);
}

void launch(Reduce& args, int units, int64_t rows, int multiprocessors, cudaStream_t stream) {
  constexpr void (*kLaunch[])(Reduce&, int64_t, int, cudaStream_t) = {launch<1>, launch<2>, launch<3>, launch<4>};
  kLaunch[units - 1](args, rows, multiprocessors, stream);
}

}  // namespace

bool reduce_large(const PairMatmuls& matmuls, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream) {
  if (!has_copy_engine() || matmuls.count > kMaxPasses || rows.count >= (int64_t{1} << 31)) return false;
  Reduce args;
  args.rows = rows;
  // Gives every multiprocessor a block if there are enough rows.
  const int64_t tiles = (rows.count + kUnit - 1) / kUnit;
  args.warps = static_cast<int>(std::clamp<int64_t>((tiles + multiprocessors - 1) / multiprocessors, 1, kMaxWarps));
  int units = 0, max_units = 0;
  for (int p = 0; p < matmuls.count; ++p) {
    const PairMatmul& matmul = matmuls.pair[p];
    if (!matmul.x.aligned || !matmul.b.aligned || matmul.x.cols == 0) return false;
    if (p == 0 || !together)
      args.pass[args.num_passes++] = {.x = box_map(matmul.x, 64, kUnit * args.warps),
                                      .depth = static_cast<int>(matmul.x.cols),
                                      .first_unit = units};
    Pass& pass = args.pass[args.num_passes - 1];
    args.b[p] = box_map(matmul.b, 64, kUnit);
    for (int column = 0; column < matmul.y_cols; column += kUnit, ++units, ++pass.units) {
      if (pass.units == kMaxUnits) return false;
      args.unit[units] = {.map = p,
                          .column = column,
                          .y_begin = matmul.y_begin + column,
                          .y_cols = static_cast<int>(matmul.y_cols - column),
                          .scale = matmul.scale};
    }
    max_units = std::max(max_units, pass.units);
  }
  launch(args, max_units, rows.count, multiprocessors, stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
