#include "kernels/cuda/common.cuh"
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plain_weight.cuh"
#include "kernels/cuda/softmax_chunk.cuh"
#include "kernels/cuda/tile.cuh"

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

// What a row's log-prob is made from: its chunks, and z of its target.
struct RowParts {
  ChunkSums* chunks;
  float* target_z;

  RowParts(int64_t rows, int64_t count, Stream& stream)
      : chunks(static_cast<ChunkSums*>(scratch_of(stream, static_cast<size_t>(rows) * bytes_of_row(count)))),
        target_z(reinterpret_cast<float*>(chunks + rows * count)) {}

 private:
  static size_t bytes_of_row(int64_t count) { return static_cast<size_t>(count) * sizeof(ChunkSums) + sizeof(float); }
};

// One block per chunk.
__global__ void __launch_bounds__(kChunkThreads) chunk_kernel(RowParts parts, Logits logits) {
  const int64_t row = blockIdx.x / logits.chunks;
  begin_early();
  const int32_t target = logits.targets[row];
  if (target < 0) return;
  const int chunk = static_cast<int>(blockIdx.x - row * logits.chunks);
  const ChunkSums sums =
      sum_chunk<true>(logits.data + row * logits.stride, chunk, logits.vocab, logits.inv_temperature, logits.aligned);
  if (threadIdx.x != 0) return;
  parts.chunks[blockIdx.x] = sums;
  if (chunk == target / kChunk)
    parts.target_z[row] = __fmul_rn(logits.data[row * logits.stride + target], logits.inv_temperature);
}

// Half a warp per chunk.
template <bool kMoment>
__global__ void __launch_bounds__(kChunkThreads)
    join_kernel(RowParts parts, const ChunkSums* pieces, int64_t rows, int chunks, int pieces_of_row) {
  begin_early();
  const int64_t at = (int64_t{blockIdx.x} * kChunkThreads + threadIdx.x) / kPiecesPerChunk;
  const int64_t row = at / chunks;
  const int piece =
      static_cast<int>(at - row * chunks) * kPiecesPerChunk + static_cast<int>(threadIdx.x) % kPiecesPerChunk;
  const bool exists = row < rows && piece < pieces_of_row;
  const ChunkSums sums =
      join_pieces<kMoment>(exists ? pieces[row * pieces_of_row + piece] : ChunkSums{-INFINITY, 0, 0});
  if (row < rows && threadIdx.x % kPiecesPerChunk == 0) parts.chunks[at] = sums;
}

constexpr int kFoldRows = 4;  // a warp each

__global__ void __launch_bounds__(32 * kFoldRows)
    fold_kernel(float* logprob, float* entropy, float* lse, RowParts parts, const int32_t* targets, int64_t rows,
                int chunks) {
  __shared__ double sums[kFoldRows][32], moments[kFoldRows][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kFoldRows + warp;
  begin_early();
  if (row >= rows) return;
  if (targets[row] < 0) {
    if (lane == 0) {
      logprob[row] = 0;
      lse[row] = 0;
      if (entropy) entropy[row] = 0;
    }
    return;
  }
  const ChunkSums* const own = parts.chunks + row * chunks;
  const RowSums all = join_chunks<true>(
      chunks, [&](int c) { return own[c]; }, sums[warp], moments[warp]);
  if (lane != 0) return;
  logprob[row] = all.logprob(parts.target_z[row]);
  lse[row] = static_cast<float>(all.largest + all.log_sum);
  if (entropy) entropy[row] = static_cast<float>(all.log_sum - all.moment / all.sum);
}

void fold(const Tensor& logprob, const Tensor& entropy, const Tensor& lse, const RowParts& parts,
          std::span<const int32_t> targets, int64_t chunks, Stream& stream) {
  const int64_t rows = logprob[0];
  launch_early(fold_kernel, static_cast<unsigned>((rows + kFoldRows - 1) / kFoldRows), 32 * kFoldRows, 0,
               stream_of(stream), data_of<float>(logprob), entropy.empty() ? nullptr : data_of<float>(entropy),
               data_of<float>(lse), parts, targets.data(), rows, static_cast<int>(chunks));
}

struct RowGrad {
  const float *lse, *entropy, *d_logprob, *d_entropy;  // d_entropy nullptr: no gradient of the entropy

  RowGrad(const ConstTensor& lse_T, const ConstTensor& entropy_T, const ConstTensor& d_logprob_T,
          const ConstTensor& d_entropy_T)
      : lse(data_of<float>(lse_T)),
        entropy(d_entropy_T.empty() ? nullptr : data_of<float>(entropy_T)),
        d_logprob(data_of<float>(d_logprob_T)),
        d_entropy(d_entropy_T.empty() ? nullptr : data_of<float>(d_entropy_T)) {}
};

__device__ __forceinline__ void store_grads(bf16* row, int v, const float (&grad)[4], int vocab, bool aligned) {
  if (aligned && v + 4 <= vocab) {
    *reinterpret_cast<uint2*>(row + v) = make_uint2(pack_bf16(grad[0], grad[1]), pack_bf16(grad[2], grad[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (v + i < vocab) row[v + i] = __float2bfloat16_rn(grad[i]);
}

// What the gradient of a row's logits is made from.
template <bool kEntropy>
struct LogitGrad {
  float inv_temperature, lse, entropy, d_logprob, d_entropy;

  __device__ __forceinline__ LogitGrad(const RowGrad& rows, int64_t row, float inv_temperature_of_z)
      : inv_temperature(inv_temperature_of_z),
        lse(rows.lse[row]),
        entropy(kEntropy ? rows.entropy[row] : 0),
        d_logprob(rows.d_logprob[row]),
        d_entropy(kEntropy ? rows.d_entropy[row] : 0) {}

  // p = exp(above), above = z - lse
  __device__ __forceinline__ float of(float p, float above, bool is_target) const {
    const float pull = __fmul_rn(d_logprob, __fsub_rn(is_target ? 1.0f : 0.0f, p));
    if (!kEntropy) return __fmul_rn(inv_temperature, pull);
    const float surprise = p > 0 ? __fmul_rn(p, __fadd_rn(above, entropy)) : 0.0f;
    return __fmul_rn(inv_temperature, __fsub_rn(pull, __fmul_rn(d_entropy, surprise)));
  }
  __device__ __forceinline__ float of_target(float z) const {
    const float above = __fsub_rn(z, lse);
    return of(expf(above), above, true);
  }
  // shift = the piece's largest z - lse, factor = exp(shift); weight = exp(z - largest), an activation.
  __device__ __forceinline__ float of_weight(float weight, float shift, float factor) const {
    return of(__fmul_rn(weight, factor), kEntropy ? __fadd_rn(shift, logf(weight)) : 0, false);
  }
};

constexpr int kGradThreads = 512;

// One block per row and a warp per piece, because the row of dlogits may lie at the beginning of the row of logits:
// entry v is then written over entry v / 2. All threads have read a tile, and everything before it, when the first of
// them writes to it; so one barrier per tile is enough. Weights are rounded as linear_logprob_forward stores them.
template <bool kEntropy>
__global__ void __launch_bounds__(kGradThreads)
    logprob_grad_kernel(bf16* dlogits, int64_t d_stride, Logits logits, RowGrad rows, bool d_aligned) {
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32, own = static_cast<int>(threadIdx.x) / 32 * kPiece + 4 * lane;
  const int32_t target = logits.targets[row];
  const float* from = logits.data + row * logits.stride;
  bf16* to = dlogits + row * d_stride;
  const bool skip = target < 0;
  const LogitGrad<kEntropy> grad_of(rows, row, logits.inv_temperature);
  for (int tile = 0; tile < logits.vocab; tile += kPiece * kGradThreads / 32) {
    float z[2][4] = {}, largest = -INFINITY;
    if (!skip) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 piece = load_logits(from, tile + own + 128 * j, logits.vocab, logits.aligned);
        z[j][0] = piece.x, z[j][1] = piece.y, z[j][2] = piece.z, z[j][3] = piece.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          z[j][i] = __fmul_rn(z[j][i], logits.inv_temperature);
          largest = fmaxf(largest, z[j][i]);
        }
      }
      largest = warp_max(largest);
      __syncthreads();
    }
    const float shift = __fsub_rn(largest, grad_of.lse), factor = expf(shift);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int v = tile + own + 128 * j;
      float grad[4] = {};
      if (!skip) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = __bfloat162float(__float2bfloat16_rn(weight_of(z[j][i], largest)));
          grad[i] = v + i == target ? grad_of.of_target(z[j][i]) : grad_of.of_weight(weight, shift, factor);
        }
      }
      store_grads(to, v, grad, logits.vocab, d_aligned);
    }
  }
}

static_assert(kPiece == kLogprobPiece && sizeof(ChunkSums) == 3 * sizeof(float));

struct FusedGrad {
  bf16* weights;  // become the gradient
  int64_t stride;
  int vocab, pieces;
  const ChunkSums* sums;
  const int32_t* targets;
  float inv_temperature;
  const float* target_z;
  RowGrad rows;
};

constexpr int kFusedThreads = 256, kFusedPieces = 4;  // pieces that a warp loads at a time

// One block per row, a warp per piece, of which a lane has 8 entries.
template <bool kEntropy>
__global__ void __launch_bounds__(kFusedThreads) fused_grad_kernel(const __grid_constant__ FusedGrad call) {
  constexpr int kWarps = kFusedThreads / 32;
  begin_early();
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t target = call.targets[row];
  bf16* const weights = call.weights + row * call.stride;
  if (target < 0) {
    for (int v = 8 * static_cast<int>(threadIdx.x); v < call.vocab; v += 8 * kFusedThreads)
      *reinterpret_cast<uint4*>(weights + v) = make_uint4(0, 0, 0, 0);
    return;
  }
  const LogitGrad<kEntropy> grad_of(call.rows, row, call.inv_temperature);
  const ChunkSums* const sums = call.sums + row * call.pieces;
#pragma unroll 1
  for (int first = warp; first < call.pieces; first += kWarps * kFusedPieces) {
    uint4 values[kFusedPieces];
    float largest[kFusedPieces];
#pragma unroll
    for (int i = 0; i < kFusedPieces; ++i) {
      const int piece = first + i * kWarps, v = piece * kPiece + lane * 8;
      if (v < call.vocab) values[i] = *reinterpret_cast<const uint4*>(weights + v);
      if (piece < call.pieces) largest[i] = sums[piece].largest;
    }
#pragma unroll
    for (int i = 0; i < kFusedPieces; ++i) {
      const int v = (first + i * kWarps) * kPiece + lane * 8;
      if (v >= call.vocab) continue;
      const float shift = __fsub_rn(largest[i], grad_of.lse), factor = expf(shift);
      uint32_t words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
      for (uint32_t& word : words)
        word = pack_bf16(grad_of.of_weight(__uint_as_float(word << 16), shift, factor),
                         grad_of.of_weight(__uint_as_float(word & 0xffff0000u), shift, factor));
      *reinterpret_cast<uint4*>(weights + v) = make_uint4(words[0], words[1], words[2], words[3]);
      if (target >= v && target < v + 8) weights[target] = __float2bfloat16_rn(grad_of.of_target(call.target_z[row]));
    }
  }
}

}  // namespace

void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) return;
  const Logits in(logits, targets, inv_temperature);
  const RowParts parts(rows, in.chunks, stream);
  launch_early(chunk_kernel, static_cast<unsigned>(rows * in.chunks), kChunkThreads, 0, stream_of(stream), parts, in);
  fold(logprob, entropy, lse, parts, targets, in.chunks, stream);
  check_launch("logprob_forward", {logits});
}

void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) return;
  const Logits in(logits, targets, inv_temperature);
  const RowGrad grads(lse, entropy, d_logprob, d_entropy);
  const auto kernel = d_entropy.empty() ? logprob_grad_kernel<false> : logprob_grad_kernel<true>;
  kernel<<<static_cast<unsigned>(rows), kGradThreads, 0, stream_of(stream)>>>(
      data_of<bf16>(dlogits), dlogits.row_stride, in, grads, rows_aligned(dlogits));
  check_launch("logprob_backward", {dlogits, logits});
}

bool makes_linear_logprob() {
  return has_copy_engine();
}

void linear_logprob_forward(const LinearLogprob& call, Stream& stream) {
  const int64_t rows = call.x[0], vocab = call.weight.rows, chunks = chunks_of(vocab), pieces = pieces_of(vocab);
  if (rows == 0) return;
  RowParts parts(rows, chunks, stream);
  parts.target_z = data_of<float>(call.target_z);
  auto* const sums = reinterpret_cast<ChunkSums*>(call.sums.data);
  const bool entropy = !call.entropy.empty();
  const bf16* const weight = plain_values(call.weight, "linear_logprob_forward", stream);
  run_tiles({.matmul = {.x = operand(call.x),
                        .w = operand(weight, call.weight.depth, vocab, call.weight.depth),
                        .outputs = vocab,
                        .end = {.y = call.weights.data, .y_stride = call.weights.row_stride}},
             .logprob = {.pieces = sums,
                         .target_z = parts.target_z,
                         .targets = call.targets.data(),
                         .scale = call.inv_temperature,
                         .moment = entropy}},
            stream_of(stream));
  const auto blocks = static_cast<unsigned>((rows * chunks * kPiecesPerChunk + kChunkThreads - 1) / kChunkThreads);
  launch_early(entropy ? join_kernel<true> : join_kernel<false>, blocks, kChunkThreads, 0, stream_of(stream), parts,
               sums, rows, static_cast<int>(chunks), static_cast<int>(pieces));
  fold(call.logprob, call.entropy, call.lse, parts, call.targets, chunks, stream);
  check_launch("linear_logprob_forward", {call.x});
}

void linear_logprob_backward(const LinearLogprobBackward& call, Stream& stream) {
  const int64_t rows = call.weights[0], vocab = call.weights[1];
  if (rows == 0) return;
  const FusedGrad grad{.weights = data_of<bf16>(call.weights),
                       .stride = call.weights.row_stride,
                       .vocab = static_cast<int>(vocab),
                       .pieces = static_cast<int>(pieces_of(vocab)),
                       .sums = reinterpret_cast<const ChunkSums*>(call.sums.data),
                       .targets = call.targets.data(),
                       .inv_temperature = call.inv_temperature,
                       .target_z = data_of<float>(call.target_z),
                       .rows = RowGrad(call.lse, call.entropy, call.d_logprob, call.d_entropy)};
  launch_early(call.d_entropy.empty() ? fused_grad_kernel<false> : fused_grad_kernel<true>, static_cast<unsigned>(rows),
               kFusedThreads, 0, stream_of(stream), grad);
  check_launch("linear_logprob_backward", {call.weights});
}

}  // namespace lockstep::kernels::cuda
