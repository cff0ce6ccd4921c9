#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/softmax_chunk.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Logits {
  const float* data;
  int64_t stride;
  int vocab, chunks;
  float inv_temperature;
  const int32_t* targets;
  bool aligned;

  Logits(const ConstTensor& t, std::span<const int32_t> target, float scale)
      : data(data_of<float>(t)),
        stride(t.row_stride),
        vocab(static_cast<int>(t.shape[1])),
        chunks(static_cast<int>(chunks_of(t.shape[1]))),
        inv_temperature(scale),
        targets(target.data()),
        aligned(rows_aligned(t)) {}
};

// One block per chunk.
__global__ void __launch_bounds__(kChunkThreads) chunk_kernel(ChunkSums* parts, Logits logits) {
  const int64_t row = blockIdx.x / logits.chunks;
  begin_early();
  if (logits.targets[row] < 0) return;
  const int chunk = static_cast<int>(blockIdx.x - row * logits.chunks);
  const ChunkSums sums =
      sum_chunk<true>(logits.data + row * logits.stride, chunk, logits.vocab, logits.inv_temperature, logits.aligned);
  if (threadIdx.x == 0) parts[blockIdx.x] = sums;
}

constexpr int kFoldRows = 4;  // a warp each

__global__ void __launch_bounds__(32 * kFoldRows)
    fold_kernel(float* logprob, float* entropy, float* lse, const ChunkSums* parts, Logits logits, int64_t rows) {
  __shared__ double sums[kFoldRows][32], moments[kFoldRows][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kFoldRows + warp;
  begin_early();
  if (row >= rows) return;
  const int32_t target = logits.targets[row];
  if (target < 0) {
    if (lane == 0) {
      logprob[row] = 0;
      lse[row] = 0;
      if (entropy) entropy[row] = 0;
    }
    return;
  }
  parts += row * logits.chunks;
  const RowSums all = join_chunks<true>(
      logits.chunks, [&](int c) { return parts[c]; }, sums[warp], moments[warp]);
  if (lane != 0) return;
  logprob[row] = all.logprob(__fmul_rn(logits.data[row * logits.stride + target], logits.inv_temperature));
  lse[row] = static_cast<float>(all.largest + all.log_sum);
  if (entropy) entropy[row] = static_cast<float>(all.log_sum - all.moment / all.sum);
}

struct RowGrad {
  const float *lse, *entropy, *d_logprob, *d_entropy;  // d_entropy nullptr: no gradient of the entropy
};

constexpr int kGradThreads = 512, kGradPieces = 2;

__device__ __forceinline__ float logit_grad(float logit, bool is_target, float inv_temperature, float lse,
                                            float entropy, float d_logprob, float d_entropy) {
  const float above = __fsub_rn(__fmul_rn(logit, inv_temperature), lse);
  const float p = expf(above);
  const float surprise = p > 0 ? __fmul_rn(p, __fadd_rn(above, entropy)) : 0.0f;
  const float pull = __fmul_rn(d_logprob, __fsub_rn(is_target ? 1.0f : 0.0f, p));
  return __fmul_rn(inv_temperature, __fsub_rn(pull, __fmul_rn(d_entropy, surprise)));
}

__device__ __forceinline__ void store_grads(bf16* row, int v, const float (&grad)[4], int vocab, bool aligned) {
  if (aligned && v + 4 <= vocab) {
    *reinterpret_cast<uint2*>(row + v) = make_uint2(pack_bf16(grad[0], grad[1]), pack_bf16(grad[2], grad[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (v + i < vocab) row[v + i] = __float2bfloat16_rn(grad[i]);
}

// One block per row, because the row of dlogits may lie at the beginning of the row of logits: entry v is then written
// over entry v / 2. All threads have read a tile, and everything before it, when the first of them writes to it; so one
// barrier per tile is enough.
__global__ void __launch_bounds__(kGradThreads)
    logprob_grad_kernel(bf16* dlogits, int64_t d_stride, Logits logits, RowGrad rows, bool d_aligned) {
  const int64_t row = blockIdx.x;
  const int32_t target = logits.targets[row];
  const float* from = logits.data + row * logits.stride;
  bf16* to = dlogits + row * d_stride;
  const bool skip = target < 0;
  const float lse = skip ? 0 : rows.lse[row], d_logprob = skip ? 0 : rows.d_logprob[row];
  const float entropy = skip || !rows.d_entropy ? 0 : rows.entropy[row];
  const float d_entropy = skip || !rows.d_entropy ? 0 : rows.d_entropy[row];
  for (int tile = 0; tile < logits.vocab; tile += 4 * kGradPieces * kGradThreads) {
    float4 piece[kGradPieces];
    if (!skip) {
#pragma unroll
      for (int j = 0; j < kGradPieces; ++j)
        piece[j] = load_logits(from, tile + 4 * (j * kGradThreads + static_cast<int>(threadIdx.x)), logits.vocab,
                               logits.aligned);
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kGradPieces; ++j) {
      const int v = tile + 4 * (j * kGradThreads + static_cast<int>(threadIdx.x));
      float grad[4] = {};
      if (!skip) {
        const float logit[4] = {piece[j].x, piece[j].y, piece[j].z, piece[j].w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          grad[i] = logit_grad(logit[i], v + i == target, logits.inv_temperature, lse, entropy, d_logprob, d_entropy);
      }
      store_grads(to, v, grad, logits.vocab, d_aligned);
    }
  }
}

}  // namespace

void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) return;
  const Logits in(logits, targets, inv_temperature);
  const int64_t parts = rows * in.chunks;
  auto* scratch = static_cast<ChunkSums*>(scratch_of(stream, static_cast<size_t>(parts) * sizeof(ChunkSums)));
  launch_early(chunk_kernel, static_cast<unsigned>(parts), kChunkThreads, 0, stream_of(stream), scratch, in);
  launch_early(fold_kernel, static_cast<unsigned>((rows + kFoldRows - 1) / kFoldRows), 32 * kFoldRows, 0,
               stream_of(stream), data_of<float>(logprob), entropy.empty() ? nullptr : data_of<float>(entropy),
               data_of<float>(lse), scratch, in, rows);
  check_launch("logprob_forward", {logits});
}

void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) return;
  const Logits in(logits, targets, inv_temperature);
  const RowGrad grads{.lse = data_of<float>(lse),
                      .entropy = d_entropy.empty() ? nullptr : data_of<float>(entropy),
                      .d_logprob = data_of<float>(d_logprob),
                      .d_entropy = d_entropy.empty() ? nullptr : data_of<float>(d_entropy)};
  logprob_grad_kernel<<<static_cast<unsigned>(rows), kGradThreads, 0, stream_of(stream)>>>(
      data_of<bf16>(dlogits), dlogits.row_stride, in, grads, rows_aligned(dlogits));
  check_launch("logprob_backward", {dlogits, logits});
}

}  // namespace lockstep::kernels::cuda
