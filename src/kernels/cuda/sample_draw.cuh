// Draws a row's token, by one block of kSampleThreads, from its logits and chunk sums (sample.cu, decode.cu).
#pragma once

#include "core/error.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_select.cuh"

namespace lockstep::kernels::cuda {

// Rows with filters are summed again, in pieces of this many entries, one warp each.
inline constexpr int kSegment = 1024;

__device__ __forceinline__ bool is_greedy(const SampleRow& row) {
  return row.temperature == 0 || row.top_k == 1;
}
// Greedy rows compare the logits themselves: scaled, two of them might become equal.
__device__ __forceinline__ float scale_of(const SampleRow& row) {
  return is_greedy(row) ? 1.0f : __fdiv_rn(1.0f, row.temperature);
}

struct SampleBatch {
  const float* logits;
  int64_t stride;
  int vocab, chunks;
  const SampleRow* rows;
  bool aligned;

  SampleBatch(const ConstTensor& t, const SampleRow* sample_rows)
      : logits(data_of<float>(t)),
        stride(t.row_stride),
        vocab(static_cast<int>(t.shape[1])),
        chunks(static_cast<int>(chunks_of(t.shape[1]))),
        rows(sample_rows),
        aligned(rows_aligned(t)) {}
};
inline void require_sampled_vocabulary(int64_t vocab, const char* op) {
  if (vocab > int64_t{kSampleThreads} * kSegment)
    throw ShapeError({.what = "vocabulary too large for a GPU's sampler",
                      .where = op,
                      .got = std::to_string(vocab),
                      .wanted = "at most " + std::to_string(int64_t{kSampleThreads} * kSegment)});
}

// The lowest id among the largest logits; only the first chunk with the largest maximum is searched.
inline __device__ int pick_largest(const LogitRow& row, const float2* parts, int chunks, Block& block) {
  int chunk = kNone;
  for (int c = chunks - 1; c >= 0; --c)
    if (parts[c].x == row.largest) chunk = c;
  int found = kNone;
  const int v = chunk * kChunk + 4 * static_cast<int>(threadIdx.x);
  const float4 piece = load_logits(row.logits, v, row.vocab, row.aligned);
  const float logit[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 3; i >= 0; --i)
    if (logit[i] == row.largest) found = v + i;
  return block_min(found, block);
}

// The token of [begin, begin + 4 * kSampleThreads) at which the sum of weights (relative to `largest`) passes `target`.
inline __device__ int pick_token(const LogitRow& row, int begin, int end, float largest, const Kept& kept,
                                 double target, Block& block) {
  const int v = begin + 4 * static_cast<int>(threadIdx.x);
  const float4 piece = load_logits(row.logits, v, min(end, row.vocab), row.aligned);
  const float logit[4] = {piece.x, piece.y, piece.z, piece.w};
  double weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    weight[i] = kept.holds(row, logit[i], v + i) ? weight_of(row.scaled(logit[i]), largest) : 0;
  return begin + invert<4>(weight, target, false, block).index;
}

// Sums of what the filters keep, per segment.
inline __device__ void sum_segments(const LogitRow& row, const Kept& kept, Block& block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // the sums overwrite the memory of select's list
  for (int segment = warp; segment * kSegment < row.vocab; segment += kSampleThreads / 32) {
    constexpr int kPieces = kSegment / 128;
    float4 piece[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      piece[j] = load_logits(row.logits, segment * kSegment + 128 * j + 4 * lane, row.vocab, row.aligned);
    double sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int v = segment * kSegment + 128 * j + 4 * lane;
      const float logit[4] = {piece[j].x, piece[j].y, piece[j].z, piece[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (kept.holds(row, logit[i], v + i)) sum += weight_of(row.scaled(logit[i]), row.largest);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) block.segment[segment] = sum;
  }
  __syncthreads();
}

inline __device__ int draw_filtered(const LogitRow& row, const SampleRow& wanted, float u, Block& block) {
  Kept kept{.last = ~uint64_t{0}, .min_p = wanted.min_p};
  const bool by_k = wanted.top_k > 0 && wanted.top_k < row.vocab, by_p = wanted.top_p < 1;
  if (by_k || by_p) {
    count_bins(row, block);
    double total = block.total_weight;
    if (by_k) {
      const Selected first = select(row, {.by_count = true, .amount = static_cast<double>(wanted.top_k)}, block);
      kept.last = first.last;
      total = first.weight;
    }
    if (by_p) {
      const Selected first = select(row, {.by_count = false, .amount = wanted.top_p * total}, block);
      kept.last = min(kept.last, first.last);
    }
  }
  sum_segments(row, kept, block);
  const bool mine = static_cast<int>(threadIdx.x) * kSegment < row.vocab;
  const double weight[1] = {mine ? block.segment[threadIdx.x] : 0};
  const Target segment = invert<1>(weight, u, true, block);
  const int begin = segment.index * kSegment;
  return pick_token(row, begin, begin + kSegment, row.largest, kept, segment.rest, block);
}

// The chunk in which the sum of the chunks' weights passes the share u of the total: invert() with an entry per thread,
// by one warp, which needs no barrier. `rest` is relative to the chunk's largest entry.
inline __device__ Target pick_chunk(const LogitRow& row, const float2* parts, int chunks, float u, Block& block) {
  constexpr int kMost = kSampleThreads * kSegment / kChunk;
  static_assert(2 * kMost <= kSampleThreads);
  double *const weights = block.segment, *const inclusive = block.segment + kMost;
  const int lane = threadIdx.x % 32;
  double sums = 0;  // of the chunks 32 lane .. 32 lane + 31, then of all before them as well
#pragma unroll 1
  for (int first = 0; first < chunks; first += 32) {
    const float2 part = first + lane < chunks ? parts[first + lane] : make_float2(-INFINITY, 0);
    const double factor = part.y > 0 ? exp(static_cast<double>(part.x) - row.largest) : 0, weight = factor * part.y;
    const double sum = warp_scan(weight);
    weights[first + lane] = weight, inclusive[first + lane] = sum;
    const double all = __shfl_sync(~0u, sum, 31);
    if (lane == first / 32) sums = all;
  }
  sums = warp_scan(sums);
  const double target = u * __shfl_sync(~0u, sums, 31);
  Target found{};
  __syncwarp();
#pragma unroll 1
  for (int first = 0; first < chunks; first += 32) {
    const double below = __shfl_sync(~0u, sums, first == 0 ? 0 : first / 32 - 1);
    const int chunk = first + lane;
    const double weight = weights[chunk];
    const double before = (first == 0 ? 0 : below) + (lane == 0 ? 0 : inclusive[max(chunk - 1, 0)]);
    const unsigned passes = __ballot_sync(~0u, weight > 0 && before + weight > target);
    const unsigned any = __ballot_sync(~0u, weight > 0);
    if (any == 0) continue;
    const int source = passes ? __ffs(passes) - 1 : 31 - __clz(any);
    found = {first + source, __shfl_sync(~0u, target - before, source)};
    if (passes) break;
  }
  found.rest /= exp(static_cast<double>(parts[found.index].x) - row.largest);
  return found;
}

inline __device__ int draw(const LogitRow& row, const float2* parts, int chunks, float u, Block& block) {
  if (threadIdx.x < 32) {
    const Target chunk = pick_chunk(row, parts, chunks, u, block);
    if (threadIdx.x == 0) block.chunk = chunk;
  }
  __syncthreads();
  const Target chunk = block.chunk;
  const int begin = chunk.index * kChunk;
  return pick_token(row, begin, begin + kChunk, parts[chunk.index].x, {.last = ~uint64_t{0}, .min_p = 0}, chunk.rest,
                    block);
}

// The token of a row, given the sums of its chunks: largest entry, sum relative to
// it, both of logits times scale_of(row).
inline __device__ int draw_token(const SampleBatch& batch, int64_t index, const float2* parts, Block& block) {
  const SampleRow& wanted = batch.rows[index];
  // Every warp goes through all chunks, so that no warp has to wait for another.
  float largest = -INFINITY;
  bool finite = true;
  for (int c = threadIdx.x % 32; c < batch.chunks; c += 32) {
    largest = fmaxf(largest, parts[c].x);
    finite = finite && isfinite(parts[c].y);
  }
  largest = warp_max(largest);
  if (!__all_sync(~0u, finite && isfinite(largest))) return -1;
  const LogitRow row{.logits = batch.logits + index * batch.stride,
                     .vocab = batch.vocab,
                     .scale = scale_of(wanted),
                     .largest = largest,
                     .aligned = batch.aligned};
  if (is_greedy(wanted)) return pick_largest(row, parts, batch.chunks, block);
  const auto* counter = reinterpret_cast<const uint32_t*>(&wanted.counter);
  const float u = uniform_of(philox_bits(wanted.seed, make_uint4(counter[0], counter[1], counter[2], counter[3])).x);
  const bool filtered = (wanted.top_k > 0 && wanted.top_k < row.vocab) || wanted.top_p < 1 || wanted.min_p > 0;
  return filtered ? draw_filtered(row, wanted, u, block) : draw(row, parts, batch.chunks, u, block);
}

}  // namespace lockstep::kernels::cuda
