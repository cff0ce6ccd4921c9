#include <climits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

struct Entry {
  float logit;
  int token;  // INT_MAX: none
};

__device__ __forceinline__ bool before(Entry a, Entry b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The first entry of the block in this order; the same in every thread.
__device__ Entry block_first(Entry entry, Entry* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Entry other{__shfl_xor_sync(~0u, entry.logit, step), __shfl_xor_sync(~0u, entry.token, step)};
    if (before(other, entry)) entry = other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = entry;
  __syncthreads();
  entry = shared[0];
  for (int warp = 1; warp < kWarps; ++warp)
    if (before(shared[warp], entry)) entry = shared[warp];
  return entry;
}

struct Rows {
  const float* logits;
  int64_t stride;
  int vocab, count;
  const float* lse;
  const int32_t* targets;
  float inv_temperature;
};

// One block per row; each pass over the row finds the next entry. After the first pass the row comes from the L2
// cache.
__global__ void __launch_bounds__(kThreads) top_rows(int32_t* tokens, float* logprobs, int32_t* ranks, Rows rows) {
  __shared__ Entry shared[kWarps];
  const int64_t row = blockIdx.x;
  const float* logits = rows.logits + row * rows.stride;
  Entry last{INFINITY, -1};
  for (int i = 0; i < rows.count; ++i) {
    Entry first{-INFINITY, INT_MAX};
    for (int v = static_cast<int>(threadIdx.x); v < rows.vocab; v += kThreads) {
      const Entry entry{logits[v], v};
      if (before(last, entry) && before(entry, first)) first = entry;
    }
    last = block_first(first, shared);
    if (threadIdx.x != 0) continue;
    const bool found = last.token != INT_MAX;  // false if logits are not finite
    tokens[row * rows.count + i] = found ? last.token : 0;
    logprobs[row * rows.count + i] =
        __fsub_rn(__fmul_rn(found ? last.logit : -INFINITY, rows.inv_temperature), rows.lse[row]);
  }
  if (!rows.targets) return;
  const float target = logits[rows.targets[row]];
  int larger = 0;
  for (int v = static_cast<int>(threadIdx.x); v < rows.vocab; v += kThreads) larger += logits[v] > target;
  larger = __reduce_add_sync(~0u, larger);
  __shared__ int sums[kWarps];
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = larger;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int rank = 1;
  for (int warp = 0; warp < kWarps; ++warp) rank += sums[warp];
  ranks[row] = rank;
}

}  // namespace

void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream) {
  const Rows rows{.logits = data_of<float>(logits),
                  .stride = logits.row_stride,
                  .vocab = static_cast<int>(logits.shape[1]),
                  .count = static_cast<int>(top.logprobs.shape[1]),
                  .lse = data_of<float>(lse),
                  .targets = targets.empty() ? nullptr : targets.data(),
                  .inv_temperature = inv_temperature};
  top_rows<<<static_cast<unsigned>(logits.shape[0]), kThreads, 0, stream_of(stream)>>>(
      top.tokens.data(), data_of<float>(top.logprobs), top.ranks.data(), rows);
  check_launch("top_logprobs", {logits});
}

}  // namespace lockstep::kernels::cuda
