// dA = x^T dh and dB = h^T dy, where there are enough columns and lanes to fill the GPU: a block keeps 64 columns of
// x or dy and iterates over all rows of one lane, which TMA loads into a ring buffer in shared memory. Every 256
// rows are summed separately, and the sums are added in order. Compute capability 9.0.
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/lora_large.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWide = 64, kUnit = 16, kMaxUnits = 4;  // columns
constexpr int kRows = 64, kStages = 5;
constexpr int kWarps = kWide / 16;
constexpr uint32_t kWideBytes = kRows * kWide * sizeof(bf16), kUnitBytes = kRows * kUnit * sizeof(bf16);

struct Task {
  CUtensorMap wide, narrow;
  int first_tile = 0, wide_cols = 0, narrow_cols = 0, num_targets = 0;
  GradientTarget target[kGradientTargets];

  __host__ __device__ int units() const { return (narrow_cols + kUnit - 1) / kUnit; }
};
struct Gradients {
  Task task[kGradientTasks];
  int num_tasks = 0;
  uint32_t stage_bytes = 0;
  const GradientBlock* blocks = nullptr;
  const GradientLane* lanes = nullptr;
  int num_lanes = 0;
};

// Iterates in order over the blocks of rows of one gradient buffer, which may have several entries in the plan. It
// loads the next entry ahead.
class BlockIterator {
 public:
  __device__ BlockIterator(const Gradients& args, int lane)
      : args_(args), gradient_(args.lanes[lane].gradient), lane_(lane), next_(find()) {}

  __device__ bool next(GradientBlock& block) {
    block = next_;
    if (block.rows == 0) return false;
    ++block_;
    next_ = find();
    return true;
  }

 private:
  __device__ GradientBlock find() {
    for (; lane_ < args_.num_lanes; ++lane_, block_ = 0) {
      const GradientLane lane = args_.lanes[lane_];
      if (lane.gradient == gradient_ && block_ < lane.num_blocks) return args_.blocks[lane.first_block + block_];
    }
    return {};
  }

  const Gradients& args_;
  const float* gradient_;
  int lane_, block_ = 0;
  GradientBlock next_;
};

// Called by one thread.
[[maybe_unused]] __device__ void fill(const Gradients& args, const Task& task, int wide0, int lane, CopyRing ring) {
  const int units = task.units();
  BlockIterator row_blocks(args, lane);
  bool first_round = true;
  for (GradientBlock block; row_blocks.next(block);)
    for (int row = 0; row < block.rows; row += kRows) {
      if (!first_round) barrier_wait(ring.empty(), ring.parity ^ 1);
      barrier_expect(ring.full(), kWideBytes + units * kUnitBytes);
      copy_box(ring.at(), task.wide, wide0, block.row_begin + row, ring.full());
      for (int u = 0; u < units; ++u)
        copy_box(ring.at() + kWideBytes + u * kUnitBytes, task.narrow, u * kUnit, block.row_begin + row, ring.full());
      ring.next();
      if (ring.stage == 0) first_round = false;
    }
}

// The mask for a pair of rows of which `left` are before the end; the others become zeros.
[[maybe_unused]] __device__ __forceinline__ uint32_t rows_mask(int left) {
  return left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
}

// 16 rows, transposed on loading: the warp's 16 columns of wide and all columns of narrow.
template <int kUnits>
struct Fragments {
  uint32_t wide[4], narrow[kUnits][4];

  // wide: (rows 0-7, columns 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15). narrow: rows 0-7 and 8-15 of 8 columns, then
  // of the next 8.
  __device__ __forceinline__ void load(uint32_t stage, int group, int units, int warp, int lane) {
    const int row = lane % 8, matrix = lane / 8;
    load_matrices_trans(wide, stage + 128 * (16 * group + matrix / 2 * 8 + row) + 16 * ((2 * warp + matrix % 2) ^ row));
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (u < units)
        load_matrices_trans(narrow[u], stage + kWideBytes + u * kUnitBytes + 32 * (16 * group + matrix % 2 * 8 + row) +
                                           16 * (matrix / 2 ^ row / 4));
  }
  // Zeroes the rows from `left` on, which belong to another block of rows.
  __device__ __forceinline__ void cut(int left, int lane) {
    const uint32_t low = rows_mask(left - lane % 4 * 2), high = rows_mask(left - lane % 4 * 2 - 8);
    wide[0] &= low, wide[1] &= low, wide[2] &= high, wide[3] &= high;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      narrow[u][0] &= low, narrow[u][1] &= high, narrow[u][2] &= low, narrow[u][3] &= high;
  }
};

// Calls f(index in the gradient, scale, accumulator) for every value of this thread.
template <int kUnits, class F>
__device__ __forceinline__ void each_value(const Task& task, int wide0, int lane, const F& f) {
#pragma unroll
  for (int j = 0; j < 2 * kUnits; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = wide0 + lane / 4 + e / 2 * 8, column = 8 * j + lane % 4 * 2 + e % 2;
      if (i >= task.wide_cols || column >= task.narrow_cols) continue;
      int t = 0;
      while (t + 1 < task.num_targets && column >= task.target[t + 1].begin) ++t;
      const GradientTarget& to = task.target[t];
      f(to.offset + i * to.wide_step + (column - to.begin) * to.narrow_step, to.scale, j, e);
    }
}

template <int kUnits>
__device__ void multiply(const Gradients& args, const Task& task, int wide0, int lane_index, CopyRing ring, int warp,
                         int lane) {
  const int units = task.units();
  float* const gradient = args.lanes[lane_index].gradient;
  float total[2 * kUnits][4] = {}, scale[2 * kUnits][4] = {};
  each_value<kUnits>(task, wide0 + 16 * warp, lane, [&](int64_t at, float by, int j, int e) {
    total[j][e] = gradient[at];
    scale[j][e] = by;
  });
  BlockIterator row_blocks(args, lane_index);
  for (GradientBlock block; row_blocks.next(block);) {
    float acc[2 * kUnits][4] = {};
    for (int row = 0; row < block.rows; row += kRows) {
      const int left = block.rows - row;
      Fragments<kUnits> fragments[2];
      barrier_wait(ring.full(), ring.parity);
      fragments[0].load(ring.at(), 0, units, warp, lane);
#pragma unroll
      for (int group = 0; group < kRows / 16; ++group) {
        if (16 * group >= left) break;
        Fragments<kUnits>& f = fragments[group % 2];
        if (group + 1 < kRows / 16) fragments[1 - group % 2].load(ring.at(), group + 1, units, warp, lane);
        if (left - 16 * group < 16) f.cut(left - 16 * group, lane);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (u >= units) break;
          mma_16816(acc[2 * u], f.wide, {f.narrow[u][0], f.narrow[u][1]});
          mma_16816(acc[2 * u + 1], f.wide, {f.narrow[u][2], f.narrow[u][3]});
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty());
      ring.next();
    }
#pragma unroll
    for (int j = 0; j < 2 * kUnits; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) total[j][e] = __fadd_rn(total[j][e], __fmul_rn(scale[j][e], acc[j][e]));
  }
  each_value<kUnits>(task, wide0 + 16 * warp, lane,
                     [&](int64_t at, float, int j, int e) { gradient[at] = total[j][e]; });
}

template <int kUnits>
__global__ void __launch_bounds__(32 * (kWarps + 1)) add_gradients(const __grid_constant__ Gradients args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) uint8_t unaligned[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // The first entry of a buffer handles all of that buffer's entries.
  const int lane_index = static_cast<int>(blockIdx.y);
  for (int l = 0; l < lane_index; ++l)
    if (args.lanes[l].gradient == args.lanes[lane_index].gradient) return;
  int t = 0;
  while (t + 1 < args.num_tasks && static_cast<int>(blockIdx.x) >= args.task[t + 1].first_tile) ++t;
  const Task& task = args.task[t];
  const int wide0 = (static_cast<int>(blockIdx.x) - task.first_tile) * kWide;
  CopyRing ring{
      .shared = (shared_address(unaligned) + 1023) / 1024 * 1024, .stage_bytes = args.stage_bytes, .stages = kStages};
  if (threadIdx.x == 0) ring.init(kWarps);
  __syncthreads();
  begin_early();
  if (warp == kWarps) {
    if (lane == 0) fill(args, task, wide0, lane_index, ring);
  } else {
    multiply<kUnits>(args, task, wide0, lane_index, ring, warp, lane);
  }
#endif
}

template <int kUnits>
void launch(const Gradients& args, dim3 grid, cudaStream_t stream) {
  const size_t bytes = 1024 + kStages * args.stage_bytes + CopyRing::kBarrierBytes;
  allow_shared<add_gradients<kUnits>>(kMaxShared);
  launch_early(add_gradients<kUnits>, grid, 32 * (kWarps + 1), bytes, stream, args);
}

}  // namespace

bool gradient_large(std::span<const GradientTask> tasks, const GradientPlan& plan, int multiprocessors,
                    cudaStream_t stream) {
  if (!has_copy_engine() || tasks.size() > size_t{kGradientTasks}) return false;
  int tiles = 0, units = 0;
  for (const GradientTask& task : tasks) {
    if (!task.wide.aligned || !task.narrow.aligned || task.narrow.cols > kMaxUnits * kUnit) return false;
    tiles += static_cast<int>((task.wide.cols + kWide - 1) / kWide);
    units = std::max(units, static_cast<int>((task.narrow.cols + kUnit - 1) / kUnit));
  }
  // With too few blocks, one block per group of rows is faster.
  if (tiles * plan.num_lanes * 2 < multiprocessors || units == 0) return false;
  Gradients args;
  args.stage_bytes = kWideBytes + static_cast<uint32_t>(units) * kUnitBytes;
  args.blocks = plan.blocks;
  args.lanes = plan.lanes;
  args.num_lanes = static_cast<int>(plan.num_lanes);
  tiles = 0;
  for (const GradientTask& from : tasks) {
    Task& task = args.task[args.num_tasks++];
    task.wide = box_map(from.wide, kWide, kRows);
    task.narrow = box_map(from.narrow, kUnit, kRows);
    task.first_tile = tiles;
    task.wide_cols = static_cast<int>(from.wide.cols);
    task.narrow_cols = static_cast<int>(from.narrow.cols);
    task.num_targets = from.num_targets;
    std::copy(from.target, from.target + from.num_targets, task.target);
    tiles += (task.wide_cols + kWide - 1) / kWide;
  }
  constexpr void (*kLaunch[])(const Gradients&, dim3, cudaStream_t) = {launch<1>, launch<2>, launch<3>, launch<4>};
  kLaunch[units - 1](args, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(plan.num_lanes)), stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
