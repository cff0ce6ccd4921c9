// The sampler's filters, by one block of kSampleThreads per row: finds exactly where top-k or top-p cuts off, in the
// order of probability, without sorting the row.
//
// Entries are ordered by rank: larger logit first, ties by lower id, so all ranks differ. A first pass counts entries
// by their distance from the largest, 64 bins per unit of z. The bin that reaches the wanted count or weight is split
// further, by bits of the rank, until its entries fit a list, which is sorted. Counts and weights in bins are integers,
// so atomic additions give the same sums in any order.
#pragma once

#include "kernels/cuda/softmax_chunk.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kBins = 2048, kBinBits = 11;  // two per thread
inline constexpr int kListRoom = 2048;             // entries in the list; two per thread
inline constexpr int kTail = kBins - 1;            // everything less likely than exp(-31.98) of the largest
inline constexpr int kNone = 0x7fffffff;

struct LogitRow {
  const float* logits;
  int vocab;
  float scale, largest;  // z = logits * scale; the largest z
  bool aligned;

  __device__ float scaled(float logit) const { return __fmul_rn(logit, scale); }
  __device__ float distance(float logit) const { return __fsub_rn(largest, scaled(logit)); }
};

__device__ __forceinline__ uint64_t rank_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));  // -0 becomes 0: they are equal
  const uint32_t falling = bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
  return uint64_t{falling} << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float logit_of(uint64_t rank) {
  const uint32_t falling = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(falling & 0x80000000u ? falling : ~falling & 0x7fffffffu);
}

// What passes the filters: ranks up to `last` whose weight is at least min_p.
struct Kept {
  uint64_t last;
  float min_p;

  __device__ bool holds(const LogitRow& row, float logit, int id) const {
    return rank_of(logit, id) <= last && (min_p <= 0 || weight_of(row.scaled(logit), row.largest) >= min_p);
  }
};

// Where a sum of weights is to arrive: `rest` beyond the sum of all entries before entry (or chunk) `index`.
struct Target {
  int index;
  double rest;
};

// Entries and deficits of each bin. An entry of bin b weighs exp(-b / 64) (1 - deficit / resolution).
struct Bins {
  uint32_t count[kBins], deficit[kBins];
};
struct Block {
  Bins bins;
  union {
    Bins finer;
    uint64_t list[kListRoom];
    double segment[kSampleThreads];
  };
  double scan[2][kSampleThreads / 32];
  double total_weight, found_count, found_weight, rest;
  int first, last, list_size, smallest;
  Target chunk;  // of the chunk in which a row without filters is drawn
};

__device__ __forceinline__ int bin_of(float distance) {
  return distance < kTail / 64.0f ? static_cast<int>(distance * 64.0f) : kTail;
}
// Chosen so that the deficits of a whole vocabulary (2^18, or 2^20) in one bin stay below 2^32; each is below 2^-6.
__device__ __forceinline__ float resolution_of(const LogitRow& row) {
  return row.vocab <= 1 << 18 ? 0x1p20f : 0x1p18f;
}
// 1 - exp(-x) for x in [0, 1/64), in units of 1 / resolution.
__device__ __forceinline__ uint32_t deficit_of(float distance, int bin, float resolution) {
  const float x = __fmaf_rn(static_cast<float>(bin), -1.0f / 64, distance);
  const float series = __fmaf_rn(-x, __fmaf_rn(x, -1.0f / 6, 0.5f), 1.0f);
  return __float2uint_rn(__fmul_rn(__fmul_rn(resolution, x), series));
}
__device__ __forceinline__ double bin_weight(int bin, uint32_t count, uint32_t deficit, float resolution) {
  if (bin == kTail) return 0;  // in total less than a rounding error of the rest
  return exp(bin * (-1.0 / 64)) * (count - deficit / static_cast<double>(resolution));
}

// Inclusive sums over the lanes, in a fixed order.
__device__ __forceinline__ double warp_scan(double x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double below = __shfl_up_sync(~0u, x, offset);
    if (lane >= offset) x += below;
  }
  return x;
}
// Exclusive sums over threads in a fixed order, and the total. Only one call at a time may use `scan`, which is shared.
__device__ __forceinline__ double block_scan(double x, double* scan, double& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const double inclusive = warp_scan(x);
  __syncthreads();
  if (lane == 31) scan[warp] = inclusive;
  __syncthreads();
  const double warps = warp_scan(scan[lane]);
  total = __shfl_sync(~0u, warps, 31);
  const double before = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
  const double inside = __shfl_up_sync(~0u, inclusive, 1);
  return (warp == 0 ? 0 : before) + (lane == 0 ? 0 : inside);
}

__device__ __forceinline__ int block_min(int x, Block& block) {
  __syncthreads();
  if (threadIdx.x == 0) block.smallest = kNone;
  __syncthreads();
  x = __reduce_min_sync(~0u, x);
  if (threadIdx.x % 32 == 0) atomicMin(&block.smallest, x);
  __syncthreads();
  return block.smallest;
}

// Makes the block agree on one entry: the smallest `first` that any thread found, else the largest `last`.
// begin_agree() comes before, and a barrier between the two.
__device__ __forceinline__ void begin_agree(Block& block) {
  if (threadIdx.x == 0) block.first = kNone, block.last = -1;
}
__device__ __forceinline__ int agree(int first, int last, Block& block) {
  first = __reduce_min_sync(~0u, first);
  last = __reduce_max_sync(~0u, last);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&block.first, first);
    atomicMax(&block.last, last);
  }
  __syncthreads();
  return block.first != kNone ? block.first : block.last;
}

// Thread i has entries N i .. N i + N-1. Finds the first one with a weight at which the sum passes the target (a share
// of the total, or absolute). Because sums are rounded there may be none: then the last one with a weight.
template <int N>
__device__ Target invert(const double (&weight)[N], double target, bool share, Block& block) {
  double own = 0, total;
  begin_agree(block);
#pragma unroll
  for (int i = 0; i < N; ++i) own += weight[i];
  double before = block_scan(own, block.scan[0], total);
  if (share) target *= total;
  int first = kNone, last = -1;
  double first_rest = 0, last_rest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (weight[i] > 0) {
      last = N * static_cast<int>(threadIdx.x) + i;
      last_rest = target - before;
      if (first == kNone && before + weight[i] > target) {
        first = last;
        first_rest = last_rest;
      }
    }
    before += weight[i];
  }
  const int index = agree(first, last, block);
  if (index == first) block.rest = first_rest;
  if (index == last) block.rest = last_rest;
  __syncthreads();
  return {index, block.rest};
}

// Calls body(logit, id) for every entry of the row, with loads issued ahead of their use.
template <class Body>
__device__ __forceinline__ void for_each_logit(const LogitRow& row, const Body& body) {
  constexpr int kPieces = 4;
  for (int begin = 0; begin < row.vocab; begin += 4 * kPieces * kSampleThreads) {
    float4 piece[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      piece[j] = load_logits(row.logits, begin + 4 * (j * kSampleThreads + static_cast<int>(threadIdx.x)), row.vocab,
                             row.aligned);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int v = begin + 4 * (j * kSampleThreads + static_cast<int>(threadIdx.x));
      const float logit[4] = {piece[j].x, piece[j].y, piece[j].z, piece[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (v + i < row.vocab) body(logit[i], v + i);
    }
  }
}

__device__ __forceinline__ void clear(Bins& bins) {
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kSampleThreads) bins.count[b] = bins.deficit[b] = 0;
  __syncthreads();
}

// Fills block.bins and block.total_weight.
inline __device__ void count_bins(const LogitRow& row, Block& block) {
  const float resolution = resolution_of(row);
  clear(block.bins);
  int tail = 0;
  for_each_logit(row, [&](float logit, int) {
    const float distance = row.distance(logit);
    const int bin = bin_of(distance);
    // often most of the vocabulary, so it is counted in registers
    if (bin == kTail) {
      ++tail;
      return;
    }
    atomicAdd(&block.bins.count[bin], 1u);
    atomicAdd(&block.bins.deficit[bin], deficit_of(distance, bin, resolution));
  });
  tail = __reduce_add_sync(~0u, tail);
  if (threadIdx.x % 32 == 0) atomicAdd(&block.bins.count[kTail], static_cast<uint32_t>(tail));
  __syncthreads();
  double own = 0, total;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int bin = 2 * static_cast<int>(threadIdx.x) + i;
    own += bin_weight(bin, block.bins.count[bin], block.bins.deficit[bin], resolution);
  }
  block_scan(own, block.scan[0], total);
  if (threadIdx.x == 0) block.total_weight = total;
  __syncthreads();
}

// How far to go in the order: until `amount` entries, or their weight, are reached.
struct Goal {
  bool by_count;
  double amount;
};
struct Reached {
  int index;
  double count, weight;  // before the entry; including it when `inclusive`
};

// Thread i has groups 2 i and 2 i + 1, in order of rank. Finds the first that reaches the goal, given `count` and
// `weight` of what precedes all groups. Rounding may leave none: then the last group that is not empty.
inline __device__ Reached reach(const double (&counts)[2], const double (&weights)[2], double count, double weight,
                                const Goal& goal, bool inclusive, Block& block) {
  double all;
  begin_agree(block);
  count += block_scan(counts[0] + counts[1], block.scan[0], all);
  weight += block_scan(weights[0] + weights[1], block.scan[1], all);
  int first = kNone, last = -1;
  double first_count = 0, first_weight = 0, last_count = 0, last_weight = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const double next_count = count + counts[i], next_weight = weight + weights[i];
    if (counts[i] > 0) {
      last = 2 * static_cast<int>(threadIdx.x) + i;
      last_count = inclusive ? next_count : count;
      last_weight = inclusive ? next_weight : weight;
      if (first == kNone && (goal.by_count ? next_count : next_weight) >= goal.amount) {
        first = last;
        first_count = last_count;
        first_weight = last_weight;
      }
    }
    count = next_count;
    weight = next_weight;
  }
  const int index = agree(first, last, block);
  if (index == first || index == last) {
    block.found_count = index == first ? first_count : last_count;
    block.found_weight = index == first ? first_weight : last_weight;
  }
  __syncthreads();
  return {index, block.found_count, block.found_weight};
}

// The one of `groups` (all in bin `bin`, or the bins themselves when bin < 0) in which the goal is reached.
inline __device__ Reached reach_group(const Bins& groups, int bin, double count, double weight, const Goal& goal,
                                      float resolution, Block& block) {
  double counts[2], weights[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int group = 2 * static_cast<int>(threadIdx.x) + i;
    counts[i] = groups.count[group];
    weights[i] = bin_weight(bin < 0 ? group : bin, groups.count[group], groups.deficit[group], resolution);
  }
  return reach(counts, weights, count, weight, goal, false, block);
}

// Sorts list[0 .. size) in ascending order; size is a power of two up to kListRoom.
inline __device__ void sort_list(uint64_t* list, int size) {
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      const int i = static_cast<int>(threadIdx.x);
      if (i >= size / 2) continue;
      const int low = 2 * step * (i / step) + i % step, high = low + step;
      const uint64_t a = list[low], b = list[high];
      const bool rising = (low & run) == 0;
      if (rising ? a > b : a < b) {
        list[low] = b;
        list[high] = a;
      }
    }
  __syncthreads();
}

struct Selected {
  uint64_t last;  // rank of the last entry that is kept
  double weight;  // sum over all entries up to it
};

// The shortest prefix of the order that reaches the goal. count_bins must have run; its results stay valid.
inline __device__ Selected select(const LogitRow& row, const Goal& goal, Block& block) {
  const float resolution = resolution_of(row);
  Reached at = reach_group(block.bins, -1, 0, 0, goal, resolution, block);
  const int bin = at.index;
  uint32_t size = block.bins.count[bin];
  // searched among the entries of the bin whose rank has the bits `prefix` under `mask`
  uint64_t prefix = 0, mask = 0;
  const auto is_inside = [&](float logit, int id) {
    return bin_of(row.distance(logit)) == bin && ((rank_of(logit, id) ^ prefix) & mask) == 0;
  };
  for (int shift = 64; size > kListRoom;) {
    shift = max(0, shift - kBinBits);
    clear(block.finer);
    for_each_logit(row, [&](float logit, int id) {
      if (!is_inside(logit, id)) return;
      const int group = static_cast<int>(rank_of(logit, id) >> shift & (kBins - 1));
      atomicAdd(&block.finer.count[group], 1u);
      if (bin != kTail) atomicAdd(&block.finer.deficit[group], deficit_of(row.distance(logit), bin, resolution));
    });
    __syncthreads();
    at = reach_group(block.finer, bin, at.count, at.weight, goal, resolution, block);
    size = block.finer.count[at.index];
    mask = ~((uint64_t{1} << shift) - 1);
    prefix |= static_cast<uint64_t>(at.index) << shift;
  }
  __syncthreads();
  if (threadIdx.x == 0) block.list_size = 0;
  for (int i = threadIdx.x; i < kListRoom; i += kSampleThreads) block.list[i] = ~uint64_t{0};
  __syncthreads();
  for_each_logit(row, [&](float logit, int id) {
    if (is_inside(logit, id)) block.list[atomicAdd(&block.list_size, 1)] = rank_of(logit, id);
  });
  __syncthreads();
  int room = 2;
  while (room < block.list_size) room *= 2;
  sort_list(block.list, room);
  double counts[2], weights[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = 2 * static_cast<int>(threadIdx.x) + i;
    const bool exists = place < block.list_size;
    const float distance = exists ? row.distance(logit_of(block.list[place])) : 0;
    counts[i] = exists;
    weights[i] = exists && bin != kTail ? bin_weight(bin, 1, deficit_of(distance, bin, resolution), resolution) : 0;
  }
  at = reach(counts, weights, at.count, at.weight, goal, true, block);
  return {block.list[at.index], at.weight};
}

}  // namespace lockstep::kernels::cuda
