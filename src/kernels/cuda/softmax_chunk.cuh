// A row of logits is processed in chunks of fixed length, each summed relative to its own maximum by one block in one
// pass over memory. Log-probabilities and the sampler use these sums.
#pragma once

#include <cmath>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kChunk = 4096;
inline constexpr int kChunkThreads = 256;

inline int64_t chunks_of(int64_t vocab) {
  return (vocab + kChunk - 1) / kChunk;
}

// Loads entries v .. v+3 of a row of `vocab`; -infinity beyond its end.
__device__ __forceinline__ float4 load_logits(const float* row, int v, int vocab, bool aligned) {
  if (aligned && v + 4 <= vocab) return *reinterpret_cast<const float4*>(row + v);
  const auto at = [&](int i) { return i < vocab ? row[i] : -INFINITY; };
  return make_float4(at(v), at(v + 1), at(v + 2), at(v + 3));
}

// z = logits * scale;  largest = max z;  sum of e = exp(z - largest);  moment = sum of e (z - largest).
// A chunk of nothing but -infinity has sum 0; NaN and +infinity make the sum NaN.
struct ChunkSums {
  float largest, sum, moment;
};

// exp(z - largest); 0 for z = -infinity, even if that is the largest.
__device__ __forceinline__ float weight_of(float z, float largest) {
  return z == -INFINITY ? 0.0f : expf(__fsub_rn(z, largest));
}

// The sums of chunk `chunk`, computed by a block of kChunkThreads; the same in every thread. Thread i has entries 4i ..
// 4i+3 of every 1024.
template <bool kMoment>
__device__ __forceinline__ ChunkSums sum_chunk(const float* row, int chunk, int vocab, float scale, bool aligned) {
  constexpr int kPieces = kChunk / (4 * kChunkThreads), kWarps = kChunkThreads / 32;
  __shared__ float shared[3][kWarps];
  float z[kPieces][4];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int v = chunk * kChunk + 4 * (j * kChunkThreads + static_cast<int>(threadIdx.x));
    const float4 piece = load_logits(row, v, vocab, aligned);
    z[j][0] = piece.x, z[j][1] = piece.y, z[j][2] = piece.z, z[j][3] = piece.w;
  }
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kPieces; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      z[j][i] = __fmul_rn(z[j][i], scale);
      largest = fmaxf(largest, z[j][i]);
    }
  largest = block_max<kWarps>(largest, shared[0]);
  float sum = 0, moment = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float e = weight_of(z[j][i], largest);
      sum = __fadd_rn(sum, e);
      // A logit of -infinity has e = 0 and contributes nothing to the entropy; 0 * infinity would be NaN.
      if (kMoment) moment = __fmaf_rn(e, e > 0 ? __fsub_rn(z[j][i], largest) : 0.0f, moment);
    }
  sum = block_sum<kWarps>(sum, shared[1]);
  if (kMoment) moment = block_sum<kWarps>(moment, shared[2]);
  return {largest, sum, moment};
}

// Combines a row's chunks in order, in double: log-probabilities near 0 keep their digits however large the logits.
struct RowSums {
  float largest;
  double sum, moment, log_sum;

  __device__ float logprob(float score) const {
    return static_cast<float>(static_cast<double>(score) - largest - log_sum);
  }
};

// By one warp, the same in every lane; part(c) returns chunk c; `sums` and `moments` are shared memory for 32 each.
template <bool kMoment, class Part>
__device__ __forceinline__ RowSums join_chunks(int chunks, const Part& part_of, double* sums, double* moments) {
  const int lane = threadIdx.x % 32;
  RowSums row{-INFINITY, 0, 0, 0};
  for (int c = lane; c < chunks; c += 32) row.largest = fmaxf(row.largest, part_of(c).largest);
  row.largest = warp_max(row.largest);
  for (int first = 0; first < chunks; first += 32) {
    const ChunkSums part = first + lane < chunks ? part_of(first + lane) : ChunkSums{-INFINITY, 0, 0};
    const double shift = static_cast<double>(part.largest) - row.largest;
    const bool counts = !(part.sum == 0);
    const double factor = counts ? exp(shift) : 0;
    sums[lane] = factor * part.sum;
    if (kMoment) moments[lane] = counts ? factor * (part.moment + shift * part.sum) : 0;
    __syncwarp();
    for (int i = 0; i < 32; ++i) {
      row.sum += sums[i];
      if (kMoment) row.moment += moments[i];
    }
    __syncwarp();
  }
  row.log_sum = log(row.sum);
  return row;
}

}  // namespace lockstep::kernels::cuda
