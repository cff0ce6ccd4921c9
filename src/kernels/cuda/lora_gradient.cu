// dA = x^T dh and dB = h^T dy: the contraction runs over the rows of a block of rows (at most 256), and both operands
// are [row][column]. A thread block takes 64 columns of the wide one (x, dy) and all columns of the narrow one (dh, h).
#include <memory>
#include <mutex>

#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_large.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kBlockRows = 256, kWide = 64, kThreads = 128;

// Where the sums of the narrow operand's columns from `begin` on are stored: element (wide column i, narrow column
// begin + j) goes to partial[offset + i * wide_step + j * narrow_step].
struct Target {
  int64_t begin = 0, offset = 0, wide_step = 0, narrow_step = 0;
  float scale = 1;
};
struct Task {
  Operand wide, narrow;
  int first_target = 0, num_targets = 0;
  unsigned first_tile = 0;
};
struct Tasks {
  Task task[kMaxPairs];
  Target target[kMaxPairs];
  int num_tasks = 0, num_targets = 0;
  unsigned tiles = 0;

  void begin_task(const Operand& wide, const Operand& narrow) {
    task[num_tasks++] = {wide, narrow, num_targets, 0, tiles};
    tiles += static_cast<unsigned>((wide.cols + kWide - 1) / kWide);
  }
  void add_target(const Target& t) {
    target[num_targets++] = t;
    ++task[num_tasks - 1].num_targets;
  }
};

template <int kNarrow>
constexpr size_t kShared = sizeof(bf16) * kBlockRows*(tile_stride(kWide) + tile_stride(kNarrow));

// A warp's sum over 128 rows: 16 wide columns x kNarrow narrow ones. Both operands are [k][column], so both are
// loaded transposed. a: the four matrices are (k 0-7, columns 0-7), (k 0-7, 8-15), (k 8-15, 0-7), (k 8-15, 8-15). b: (k
// 0-7) and (k 8-15) of one group of 8 columns, then of the next.
template <int kNarrow>
__device__ __forceinline__ void half_chain(float (&acc)[kNarrow / 8][4], const bf16* wide, const bf16* narrow,
                                           int num_narrow, int lane) {
  const int row = lane % 8, matrix = lane / 8;
#pragma unroll 4
  for (int k = 0; k < kBlockRows / 2; k += 16) {
    uint32_t a[4];
    ldmatrix_x4_trans(a, wide + (k + matrix / 2 * 8 + row) * tile_stride(kWide) + matrix % 2 * 8);
#pragma unroll
    for (int j = 0; j < kNarrow / 8; j += 2) {
      if (8 * j >= num_narrow) break;
      uint32_t b[4];
      ldmatrix_x4_trans(b, narrow + (k + matrix % 2 * 8 + row) * tile_stride(kNarrow) + 8 * j + matrix / 2 * 8);
      mma_16816(acc[j], a, {b[0], b[1]});
      mma_16816(acc[j + 1], a, {b[2], b[3]});
    }
  }
}

template <int kNarrow>
__device__ void store_partial(const float (&acc)[kNarrow / 8][4], const Tasks& tasks, const Task& task, float* partial,
                              int64_t wide0, int64_t narrow0, int lane) {
#pragma unroll
  for (int j = 0; j < kNarrow / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t i = wide0 + lane / 4 + e / 2 * 8, column = narrow0 + 8 * j + lane % 4 * 2 + e % 2;
      if (i >= task.wide.cols || column >= task.narrow.cols) continue;
      int t = task.first_target;
      while (t + 1 < task.first_target + task.num_targets && column >= tasks.target[t + 1].begin) ++t;
      const Target& to = tasks.target[t];
      partial[to.offset + i * to.wide_step + (column - to.begin) * to.narrow_step] = __fmul_rn(to.scale, acc[j][e]);
    }
}

__device__ Operand rows_of_block(Operand all, const GradientBlock& block) {
  all.data += block.row_begin * all.stride;
  all.rows = block.rows;
  // The first row's address and the stride have been checked for alignment, so every row is aligned.
  return all;
}

template <int kNarrow>
__global__ void __launch_bounds__(kThreads)
    partial_gradients(const __grid_constant__ Tasks tasks, const GradientBlock* blocks, float* partial,
                      int64_t partial_stride) {
  extern __shared__ __align__(16) bf16 shared[];
  constexpr int kHalf = kBlockRows / 2;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int t = 0;
  while (t + 1 < tasks.num_tasks && blockIdx.x >= tasks.task[t + 1].first_tile) ++t;
  const Task& task = tasks.task[t];
  const int64_t wide0 = int64_t{blockIdx.x - task.first_tile} * kWide;
  const GradientBlock block = blocks[blockIdx.y];
  const Operand wide = rows_of_block(task.wide, block), narrow = rows_of_block(task.narrow, block);
  bf16* const wide_tile = shared;
  bf16* const narrow_tile = shared + kBlockRows * tile_stride(kWide);
  partial += blockIdx.y * partial_stride;

  for (int64_t narrow0 = 0; narrow0 < narrow.cols; narrow0 += kNarrow) {
    if (narrow0 > 0) __syncthreads();
    for (int half = 0; half < 2; ++half) {
      const int row = half * kHalf;
      if (row < block.rows) {
        if (narrow0 == 0)
          load_tile<kHalf, kWide, kThreads, true>(wide_tile + row * tile_stride(kWide), wide, row, wide0, thread);
        load_tile<kHalf, kNarrow, kThreads, true>(narrow_tile + row * tile_stride(kNarrow), narrow, row, narrow0,
                                                  thread);
      }
      copy_commit();
    }
    float acc[kNarrow / 8][4] = {};
    const int num_narrow = static_cast<int>(narrow.cols - narrow0 < kNarrow ? narrow.cols - narrow0 : kNarrow);
    copy_wait<1>();
    __syncthreads();
    half_chain<kNarrow>(acc, wide_tile + 16 * warp, narrow_tile, num_narrow, lane);
    copy_wait<0>();
    __syncthreads();
    if (block.rows > kHalf)
      half_chain<kNarrow>(acc, wide_tile + kHalf * tile_stride(kWide) + 16 * warp,
                          narrow_tile + kHalf * tile_stride(kNarrow), num_narrow, lane);
    store_partial<kNarrow>(acc, tasks, task, partial, wide0 + 16 * warp, narrow0, lane);
  }
}

// Where a block's sums belong in its lane's gradient buffer: pair p's dA, then its dB.
struct Pieces {
  struct Piece {
    int64_t begin = 0, offset = 0;  // offsets in a block's sums and in the gradient buffer
  } piece[2 * kMaxPairs];
  int count = 0;
  int64_t floats = 0;

  void add(int64_t offset, int64_t size) {
    piece[count++] = {floats, offset};
    floats += size;
  }
};

// The first of a buffer's entries in the plan handles all of them. `ready`: counters that become zeros again.
__global__ void add_blocks(const __grid_constant__ Pieces pieces, const GradientLane* lanes, int64_t num_lanes,
                           const float* partial, uint32_t* ready, int64_t num_ready) {
  const int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, first = blockIdx.y;
  float* const gradient = lanes[first].gradient;
  bool is_first = true;
  for (int64_t l = 0; l < first; ++l) is_first = is_first && lanes[l].gradient != gradient;
  begin_early();
  if (first == 0)
    for (int64_t i = e; i < num_ready; i += int64_t{gridDim.x} * blockDim.x) ready[i] = 0;
  if (e >= pieces.floats || !is_first) return;
  int p = 0;
  while (p + 1 < pieces.count && e >= pieces.piece[p + 1].begin) ++p;
  float* const at = gradient + pieces.piece[p].offset + (e - pieces.piece[p].begin);
  float sum = *at;
  for (int64_t l = first; l < num_lanes; ++l) {
    const GradientLane lane = lanes[l];
    if (lane.gradient != gradient) continue;
    const float* const from = partial + lane.first_block * pieces.floats + e;
#pragma unroll 8
    for (int32_t b = 0; b < lane.num_blocks; ++b) sum += __ldcs(from + b * pieces.floats);
  }
  *at = sum;
}

void launch_partial(const Tasks& tasks, const GradientPlan& plan, int64_t floats, cudaStream_t stream) {
  int64_t narrow = 0;
  for (int t = 0; t < tasks.num_tasks; ++t) narrow = std::max(narrow, tasks.task[t].narrow.cols);
  const dim3 grid(tasks.tiles, static_cast<unsigned>(plan.num_blocks));
  if (narrow <= 16) {
    allow_shared<partial_gradients<16>>(kShared<16>);
    partial_gradients<16><<<grid, kThreads, kShared<16>, stream>>>(tasks, plan.blocks, plan.partial, floats);
  } else {
    allow_shared<partial_gradients<64>>(kShared<64>);
    partial_gradients<64><<<grid, kThreads, kShared<64>, stream>>>(tasks, plan.blocks, plan.partial, floats);
  }
}

void launch_add(const Pieces& pieces, const GradientPlan& plan, uint32_t* ready, int64_t num_ready,
                cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((pieces.floats + 255) / 256), static_cast<unsigned>(plan.num_lanes));
  launch_early(add_blocks, grid, 256, 0, stream, pieces, plan.lanes, plan.num_lanes, plan.partial, ready, num_ready);
}

bool launch_large(const GradientPlan& plan, const ConstTensor& x, const ConstTensor& h, const ConstTensor& dh,
                  const ConstTensor& dy, std::span<const LoraPair> pairs, Stream& stream) {
  if (pairs.size() > size_t{kGradientTargets}) return false;
  GradientTask tasks[kGradientTasks];
  GradientTask& da = tasks[0];
  da.wide = operand(x), da.narrow = operand(dh);
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    const int64_t rank = pair.rank(), out = pair.b[1];
    GradientTask& db = tasks[1 + da.num_targets];
    db.wide = columns_of(dy, pair.out_begin, out), db.narrow = columns_of(h, begin, rank);
    db.target[db.num_targets++] = {.offset = pair.b_offset, .wide_step = 1, .narrow_step = out, .scale = pair.scale};
    da.target[da.num_targets++] = {.begin = begin, .offset = pair.a_offset, .wide_step = rank, .narrow_step = 1};
    begin += rank;
  }
  return gradient_large({tasks, 1 + pairs.size()}, plan, library_of(stream).multiprocessors, stream_of(stream));
}

// Whether the blocks have all rows of the call, in order, and enough of them each for their sums to be few bytes.
bool suits_one_pass(const GradientPlan& plan, int64_t rows) {
  constexpr int64_t kLeastRows = 2048, kLeastBlockRows = 96;
  if (rows < kLeastRows || plan.num_blocks * kLeastBlockRows > rows || plan.num_blocks > Library::kMaxReady)
    return false;
  int64_t next = 0;
  for (const GradientRows& r : plan.rows) {
    if (r.rows > 0 && r.row_begin != next) return false;
    next += r.rows;
  }
  return next == rows;
}

// Thread blocks of the one launch wait for each other, which ends only if all of them run. Two such launches of two
// streams might each have half of the multiprocessors, so one stream of the process makes them, while it lives.
bool may_wait_on_gpu(Library& library) {
  static std::mutex mutex;
  static std::weak_ptr<void> claim;
  if (library.only_backward) return true;
  const std::lock_guard lock(mutex);
  if (claim.lock()) return false;
  library.only_backward = std::make_shared<int>();
  claim = library.only_backward;
  return true;
}

bool launch_one_pass(const GradientPlan& plan, const Tensor& dh, const ConstTensor& x, const ConstTensor& h,
                     const ConstTensor& dy, std::span<const LoraPair> pairs, Stream& stream) {
  if (!suits_one_pass(plan, x[0])) return false;
  Library& library = library_of(stream);
  if (!may_wait_on_gpu(library)) return false;
  LoraBackward call{.plan = plan,
                    .x = operand(x),
                    .dh = operand(dh),
                    .h = h,
                    .dy = dy,
                    .pairs = pairs,
                    .ready = library.ready_counters()};
  Pieces pieces;
  for (size_t p = 0; p < pairs.size(); ++p) {
    call.da[p] = pieces.floats;
    pieces.add(pairs[p].a_offset, x[1] * pairs[p].rank());
    call.db[p] = pieces.floats;
    pieces.add(pairs[p].b_offset, pairs[p].b.elements());
  }
  call.floats = pieces.floats;
  if (!backward_large(call, library.multiprocessors, stream_of(stream))) return false;
  launch_add(pieces, plan, call.ready, plan.num_blocks, stream_of(stream));
  return true;
}

}  // namespace

void lora_backward(const GradientPlan& plan, Tensor dh, ConstTensor x, ConstTensor h, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream) {
  require_few_pairs(pairs, "lora_backward");
  if (launch_one_pass(plan, dh, x, h, dy, pairs, stream)) return check_launch("lora_backward", {x, h, dh, dy});
  cuda::lora_expand_backward(dh, dy, pairs, stream);
  cuda::lora_gradient(plan, x, h, dh, dy, pairs, stream);
}

void lora_gradient(const GradientPlan& plan, ConstTensor x, ConstTensor h, ConstTensor dh, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream) {
  if (plan.num_blocks == 0 || pairs.empty()) return;
  require_few_pairs(pairs, "lora_gradient");
  if (launch_large(plan, x, h, dh, dy, pairs, stream)) return check_launch("lora_gradient", {x, h, dh, dy});
  Tasks da, db;
  Pieces pieces;
  int64_t begin = 0;
  da.begin_task(operand(x), operand(dh));
  for (const LoraPair& pair : pairs) {
    const int64_t rank = pair.rank(), out = pair.b[1];
    da.add_target({.begin = begin, .offset = pieces.floats, .wide_step = rank, .narrow_step = 1});
    pieces.add(pair.a_offset, x[1] * rank);
    db.begin_task(columns_of(dy, pair.out_begin, out), columns_of(h, begin, rank));
    db.add_target({.offset = pieces.floats, .wide_step = 1, .narrow_step = out, .scale = pair.scale});
    pieces.add(pair.b_offset, rank * out);
    begin += rank;
  }
  launch_partial(da, plan, pieces.floats, stream_of(stream));
  launch_partial(db, plan, pieces.floats, stream_of(stream));
  launch_add(pieces, plan, nullptr, 0, stream_of(stream));
  check_launch("lora_gradient", {x, h, dh, dy});
}

}  // namespace lockstep::kernels::cuda
