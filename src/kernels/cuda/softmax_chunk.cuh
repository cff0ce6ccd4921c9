// A row of logits is summed in chunks of 4096 entries, a chunk in pieces of 256, each relative to its own maximum.
// Log-probabilities and the sampler use these sums; the matmul that makes the logits can sum pieces in its epilogue
// (linear_tiles_logprob.cuh), in the same order.
#pragma once

#include <cmath>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kChunk = 4096, kPiece = 256, kPiecesPerChunk = kChunk / kPiece;
inline constexpr int kChunkThreads = 256;

inline int64_t chunks_of(int64_t vocab) {
  return (vocab + kChunk - 1) / kChunk;
}
inline int64_t pieces_of(int64_t vocab) {
  return (vocab + kPiece - 1) / kPiece;
}

// Loads entries v .. v+3 of a row of `vocab`; -infinity beyond its end.
__device__ __forceinline__ float4 load_logits(const float* row, int v, int vocab, bool aligned) {
  if (aligned && v + 4 <= vocab) return *reinterpret_cast<const float4*>(row + v);
  const auto at = [&](int i) { return i < vocab ? row[i] : -INFINITY; };
  return make_float4(at(v), at(v + 1), at(v + 2), at(v + 3));
}

// z = logits * scale;  largest = max z;  sum of e = exp(z - largest);  moment = sum of e (z - largest).
// What holds nothing but -infinity has sum 0; NaN and +infinity make the sum NaN.
struct ChunkSums {
  float largest, sum, moment;
};

// exp(x) for x <= 0 by the GPU's instruction for powers of 2: relative error below 2^-22 + 2^-23 |x|.
__device__ __forceinline__ float exp_of(float x) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(e) : "f"(__fmul_rn(x, 1.4426950408889634f)));
  return e;
}
// What is subtracted from the logits, so that those of -infinity weigh 0 even if that is the largest.
__device__ __forceinline__ float reference_of(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}
// exp(z - largest); 0 for z = -infinity.
__device__ __forceinline__ float weight_of(float z, float largest) {
  return exp_of(__fsub_rn(z, reference_of(largest)));
}

// Sums of e and of its moment over the entries that a thread adds up one after the other.
template <bool kMoment>
struct WeightSum {
  float sum = 0, moment = 0;

  // below = z - largest
  __device__ __forceinline__ float add(float below) {
    const float e = exp_of(below);
    sum = __fadd_rn(sum, e);
    // A logit of -infinity has e = 0 and contributes nothing to the entropy; 0 * infinity would be NaN.
    if (kMoment) moment = __fmaf_rn(e, fmaxf(below, -1e30f), moment);
    return e;
  }
  __device__ __forceinline__ void add(const WeightSum& other) {
    sum = __fadd_rn(sum, other.sum);
    if (kMoment) moment = __fadd_rn(moment, other.moment);
  }
  __device__ __forceinline__ void add_lane(int offset) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
    if (kMoment) moment = __fadd_rn(moment, __shfl_xor_sync(~0u, moment, offset));
  }
};

// A piece is summed as the lanes of wgmma hold it: lane q of four has entries 8 j + 2 q and the one behind it, in eight
// sums, sum i over j = i, i + 8, i + 16, i + 24; these are added in pairs that lie 4, then 2, then 1 apart, and those
// of the lanes 2 and 1 apart. Here by a warp, whose lane 4 i + q has sum i of lane q; the same in every lane.
template <bool kMoment>
__device__ __forceinline__ ChunkSums sum_piece(const float (&z)[8]) {
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < 8; ++j) largest = fmaxf(largest, z[j]);
  largest = warp_max(largest);
  const float reference = reference_of(largest);
  WeightSum<kMoment> all;
#pragma unroll
  for (int j = 0; j < 8; ++j) all.add(__fsub_rn(z[j], reference));
#pragma unroll
  for (int offset : {16, 8, 4, 2, 1}) all.add_lane(offset);
  return {largest, all.sum, all.moment};
}

// The sums of a chunk from those of its pieces: lane i of 16 has piece i; the same in all 16 lanes.
template <bool kMoment>
__device__ __forceinline__ ChunkSums join_pieces(const ChunkSums& piece) {
  float largest = piece.largest;
#pragma unroll
  for (int offset = kPiecesPerChunk / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  const float shift = __fsub_rn(piece.largest, reference_of(largest)), factor = exp_of(shift);
  WeightSum<kMoment> all{.sum = __fmul_rn(factor, piece.sum)};
  if (kMoment && piece.sum != 0) all.moment = __fmul_rn(factor, __fmaf_rn(shift, piece.sum, piece.moment));
#pragma unroll
  for (int offset = kPiecesPerChunk / 2; offset > 0; offset /= 2) all.add_lane(offset);
  return {largest, all.sum, all.moment};
}

// The sums of chunk `chunk`, computed by a block of kChunkThreads; the same in every thread.
template <bool kMoment>
__device__ __forceinline__ ChunkSums sum_chunk(const float* row, int chunk, int vocab, float scale, bool aligned) {
  constexpr int kWarps = kChunkThreads / 32, kPieces = kPiecesPerChunk / kWarps;
  __shared__ ChunkSums shared[kPiecesPerChunk];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float z[kPieces][8];
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int v = chunk * kChunk + (warp * kPieces + p) * kPiece + 64 * j + 2 * lane;
      if (aligned && v + 2 <= vocab) {
        const float2 two = *reinterpret_cast<const float2*>(row + v);
        z[p][2 * j] = two.x, z[p][2 * j + 1] = two.y;
      } else {
        z[p][2 * j] = v < vocab ? row[v] : -INFINITY, z[p][2 * j + 1] = v + 1 < vocab ? row[v + 1] : -INFINITY;
      }
    }
  __syncthreads();  // a call before this one may still be reading
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int j = 0; j < 8; ++j) z[p][j] = __fmul_rn(z[p][j], scale);
    const ChunkSums piece = sum_piece<kMoment>(z[p]);
    if (lane == 0) shared[warp * kPieces + p] = piece;
  }
  __syncthreads();
  return join_pieces<kMoment>(shared[lane % kPiecesPerChunk]);
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
