// How the attention kernels for Hopper load tiles and share out their work.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/claimed_indices.cuh"
#include "kernels/cuda/library.h"

namespace lockstep::kernels::cuda {

// Loading, by the 128 threads of a warpgroup: a thread copies one chunk of every kStep-th row, so that its position in
// the swizzle is constant.
template <int kDim>
struct TileLoader {
  static constexpr int kChunks = kDim / 8, kStep = kWarpgroup / kChunks, kPieces = kTileRows / kStep;
  static constexpr int kPiece = kStep * kDim;  // elements copied per step
  static_assert(kStep % 8 == 0);
  int row, chunk, offset;

  __device__ explicit TileLoader(int thread)
      : row(thread / kChunks), chunk(thread % kChunks), offset(swizzled_offset(row, chunk)) {}

  // Copies rows of a matrix from `first` on; rows from `present` on become zeros.
  __device__ __forceinline__ void rows(bf16* tile, const HeadRows<const bf16>& from, int64_t first, int column,
                                       int present) const {
    const bf16* source = from.at(first + row, column + 8 * chunk);
#pragma unroll
    for (int i = 0; i < kPieces; ++i, source += kStep * from.stride) {
      const bool valid = row + i * kStep < present;
      copy_async_16(tile + offset + i * kStep * 64, valid ? source : from.data, valid);
    }
  }
  // Copies 64 positions, 16 from each of from[]; positions from `present` on become zeros.
  __device__ __forceinline__ void positions(bf16* tile, const bf16* const (&from)[4], int64_t shift,
                                            int present) const {
    if (present >= kTileRows)
      positions<true>(tile, from, shift, present);
    else
      positions<false>(tile, from, shift, present);
  }

 private:
  template <bool kAll>
  __device__ __forceinline__ void positions(bf16* tile, const bf16* const (&from)[4], int64_t shift,
                                            int present) const {
    constexpr int kPerBlock = static_cast<int>(kKvBlock) / kStep;
    const int64_t own = shift + row * kDim + 8 * chunk;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const bf16* const source = from[b] + own;
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i) {
        const int piece = b * kPerBlock + i;
        copy_async_16(tile + offset + piece * kStep * 64, source + i * kPiece, kAll || row + piece * kStep < present);
      }
    }
  }
};

__device__ __forceinline__ void find_positions(const bf16* (&from)[4], const KvPlace& place, int position) {
#pragma unroll
  for (int b = 0; b < 4; ++b) from[b] = place.at(position + b * static_cast<int>(kKvBlock));
}

inline constexpr int kComputingGroups = 2;  // warpgroups that compute, beside the one that loads
inline constexpr int kPersistentThreads = (1 + kComputingGroups) * kWarpgroup;

// Splits a CTA: its first warpgroup calls load(thread), the others compute(group, lane). Thread 0 has initialized the
// barriers. Registers per thread: together the warpgroups may have no more than the CTA is launched with, or those that
// claim more would wait for ever.
template <int kLoading, int kComputing, class Load, class Compute>
__device__ __forceinline__ void split_warpgroups(const Load& load, const Compute& compute) {
  constexpr int kLaunchedWith = 65536 / kPersistentThreads / 8 * 8;
  static_assert(kLoading + kComputingGroups * kComputing <= (1 + kComputingGroups) * kLaunchedWith);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == 0) {
    release_registers<kLoading>();
    load(threadIdx.x);
  } else {
    claim_registers<kComputing>();
    compute(warpgroup - 1, threadIdx.x & 31);
  }
}

// Launches a kernel of kPersistentThreads: a CTA on each multiprocessor or, if there are fewer work items than these,
// for each item. The caller's check_launch() reports a failure.
template <auto kKernel, class Shared, class Arguments>
void launch_persistent(const Arguments& p, int64_t items, Stream& stream) {
  constexpr int kBytes = sizeof(Shared) + kTileAlignment;
  const int64_t ctas = std::min<int64_t>(items, library_of(stream).multiprocessors);
  allow_shared<kKernel>(kBytes);
  kKernel<<<static_cast<unsigned>(ctas), kPersistentThreads, kBytes, stream_of(stream)>>>(p);
}

// Persistent CTAs, one per multiprocessor. The loading warpgroup finds the CTA's work items (a tile group and a head
// each), queues them for the computing warpgroups and loads ahead, so that an item need not wait for the previous one.

// The indices of this CTA's work items, in ascending order, dealt out: odd rounds run from the last CTA to the first.
// As items are listed longest first, this gives all CTAs about the same amount of work.
class DealtIndices {
 public:
  __device__ __forceinline__ int next() {
    const int n = next_++, ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
    return n * ctas + (n & 1 ? ctas - 1 - cta : cta);
  }
  __device__ __forceinline__ void finish() {}

 private:
  int next_ = 0;
};
// The same, claimed from a counter in memory (claimed_indices.cuh); the first is the CTA's own number. The counter is
// read one item ahead. All threads of the loading warpgroup call this together, never before wait_for_previous().
class CountedIndices {
 public:
  __device__ CountedIndices(uint32_t* counters, int thread)
      : counters_(counters), thread_(thread), next_(static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ int next() {
    __shared__ int shared_index;
    synchronize_warpgroup(1);
    if (thread_ == 0) {
      shared_index = next_;
      next_ = static_cast<int>(gridDim.x) + claim_index(counters_);
    }
    synchronize_warpgroup(1);
    return shared_index;
  }
  // After the last call of next().
  __device__ __forceinline__ void finish() {
    if (thread_ == 0) finish_claims(counters_);
  }

 private:
  uint32_t* counters_;
  int thread_, next_;
};

// A queue of work items from the loading warpgroup to the computing ones. An item is full when every loading warp has
// handed it over: if one warp's arrival were enough, the computing warps could take the item and release it twice while
// another loading warp has yet to look at `empty`, whose parity would then say that it is not free.
template <class Work, int kQueuedItems>
struct WorkQueue {
  Ring<kQueuedItems> ring;
  Work work_items[kQueuedItems];

  __device__ void init(int groups) { ring.init(kWarpgroup / 32, groups); }
  // Called by every thread of the loading warpgroup.
  __device__ __forceinline__ void hand_over(RingPlace<kQueuedItems>& at, const Work& work, int thread) {
    ring.empty[at.stage].wait(at.round ^ 1);
    if (thread == 0) work_items[at.stage] = work;
    __syncwarp();
    if (thread % 32 == 0) ring.full[at.stage].arrive();
    at.advance();
  }
  // Called by every computing warp.
  __device__ __forceinline__ Work take(RingPlace<kQueuedItems>& at, int lane) {
    ring.full[at.stage].wait(at.round);
    const Work work = work_items[at.stage];
    release_stage(ring.empty[at.stage], lane);
    at.advance();
    return work;
  }
};

// Groups of up to kTiles consecutive tiles of a sequence, in the order of the list of tiles or from its end.
// kAlone: a tile of keys that other sequences share makes a group of its own.
// All threads of one warpgroup call this together.
template <int kTiles, bool kFromEnd, bool kAlone = false>
class TileGroups {
  static_assert(!kAlone || kTiles == 2);  // tiles_from() tells only one tile from a whole group

 public:
  // The number of tiles of the group that begins with this tile, unless the sequence ends before; 0 if none does.
  static __device__ __forceinline__ int tiles_from(const DeviceSequences& sequences, const QueryTile& tile) {
    const int in_group = tile.first / kTileRows % kTiles;
    if (!kAlone || !sequences.followers || sequences.followers[tile.sequence] == 0) return in_group ? 0 : kTiles;
    const int shared = sequences.sequences[tile.sequence + 1].first_position;  // keys
    if (tile.first - in_group * kTileRows < shared) return 1;
    return in_group ? 0 : kTiles;
  }

  // The first tile of the n-th group; sequence -1 if there are fewer. n ascends from call to call.
  __device__ __forceinline__ QueryTile find(const DeviceSequences& sequences, int n) {
    __shared__ QueryTile found;
    __shared__ int counts[kWarpgroup / 32];
    if (!sequences.tiles) return {n < static_cast<int>(sequences.num_sequences) ? n : -1, 0};
    const int num_tiles = static_cast<int>(sequences.num_tiles);
    const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread & 31;
    while (begin_ < num_tiles) {
      const int i = begin_ + thread;
      QueryTile tile{-1, 0};
      if (i < num_tiles) tile = sequences.tiles[kFromEnd ? num_tiles - 1 - i : i];
      const bool begins = i < num_tiles && tiles_from(sequences, tile) != 0;
      const unsigned votes = __ballot_sync(~0u, begins);
      if (lane == 0) counts[warp] = __popc(votes);
      synchronize();
      int own = before_ + __popc(votes & ((1u << lane) - 1)), after = before_;
#pragma unroll
      for (int w = 0; w < kWarpgroup / 32; ++w) own += w < warp ? counts[w] : 0, after += counts[w];
      if (begins && own == n) found = tile;
      synchronize();
      if (n < after) {
        const QueryTile result = found;
        synchronize();
        return result;
      }
      begin_ += kWarpgroup, before_ = after;
    }
    return {-1, 0};
  }

 private:
  static __device__ __forceinline__ void synchronize() {
    synchronize_warpgroup(1);
  }

  int begin_ = 0, before_ = 0;  // the next tile to examine; how many groups begin before it
};
// An upper bound of the number of groups.
inline int64_t max_groups(const DeviceSequences& sequences, int tiles) {
  if (!sequences.tiles) return sequences.num_sequences;
  return (sequences.num_tiles + (tiles - 1) * sequences.num_sequences) / tiles;
}

// Work items of queries: two units of 64 rows, for two warpgroups: two tiles of one head or, where a sequence has only
// one tile, two heads of a group.

inline constexpr int kUnits = kComputingGroups;

// 64 rows of one head, or as many of them as are present.
struct Unit {
  int head, first, present;
};

struct QueryWork {
  DeviceSequence sequence;
  int first, head, heads, end, first_block, last_block;  // heads: 0 if the units are tiles of one head
                                                         // head: -1 after the last work item

  QueryWork() = default;
  template <class Arguments>
  __device__ QueryWork(const Arguments& p, const QueryTile& tile, int query_head)
      : sequence(p.sequences.sequences[tile.sequence]), first(tile.first), head(query_head) {
    const int group = p.heads / p.kv_heads, first_position = sequence.first_position + first;
    heads = sequence.rows <= kTileRows ? group - head % group : 0;
    end = sequence.first_position + min(first + (heads ? 1 : kUnits) * kTileRows, sequence.rows);
    first_block = (p.window ? max(0, first_position - p.window + 1) : 0) / kKeyBlock;
    last_block = (end - 1) / kKeyBlock;
  }
  // Whether another work item has this head among its units.
  template <class Arguments>
  __device__ bool elsewhere(const Arguments& p) const {
    return heads != 0 && head % (p.heads / p.kv_heads) % kUnits != 0;
  }
  __device__ Unit unit(int g) const {
    if (heads) return {.head = head + g, .first = first, .present = g < heads ? sequence.rows - first : 0};
    const int own = first + g * kTileRows;
    return {.head = head, .first = own, .present = sequence.rows - own};
  }
  __device__ int64_t row(const Unit& unit) const { return int64_t{sequence.row_begin} + unit.first; }
};

// The CTA's work items of queries, in order. All threads of the loading warpgroup call this together.
template <class Arguments, class Indices>
class QueryItems {
 public:
  __device__ QueryItems(const Arguments& p, Indices indices) : p_(p), indices_(indices) {}
  // False after the last one.
  __device__ __forceinline__ bool next(QueryWork& work) {
    while (true) {
      const int index = indices_.next();
      const QueryTile tile = groups_.find(p_.sequences, index / p_.heads);
      if (tile.sequence < 0) break;
      work = QueryWork(p_, tile, index % p_.heads);
      if (!work.elsewhere(p_)) return true;
    }
    indices_.finish();
    return false;
  }

 private:
  const Arguments& p_;
  Indices indices_;
  TileGroups<kUnits, false> groups_;
};

// Stores 16 rows of a warp by way of 16 kDim elements of shared memory that only this warp uses, so that a thread
// stores 16 bytes. pair(n, h): columns 8 n + 2 t and 8 n + 2 t + 1 of row g + 8 h. The warp's row r goes to
// row + place_of(r) if that is less than `present`.
template <int kDim, class Pair, class PlaceOf>
__device__ __forceinline__ void store_staged(bf16* staged, const HeadRows<bf16>& to, int64_t row, int column,
                                             int present, int lane, const Pair& pair, const PlaceOf& place_of) {
  constexpr int kChunks = kDim / 8;
  __syncwarp();  // no lane uses the memory any more
  const auto place = [&](int r, int chunk) { return staged + r * kDim + (chunk ^ (r & 7)) * 8; };
#pragma unroll
  for (int n = 0; n < kChunks; n += 2) {
    const uint32_t four[4] = {pair(n, 0), pair(n, 1), pair(n + 1, 0), pair(n + 1, 1)};
    stmatrix_x4(place(lane & 15, n + (lane >> 4)), four);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int r = i / kChunks, chunk = i % kChunks, at = place_of(r);
    if (at < present)
      *reinterpret_cast<uint4*>(to.at(row + at, column + 8 * chunk)) = *reinterpret_cast<const uint4*>(place(r, chunk));
  }
  __syncwarp();
}
template <int kDim, class Pair>
__device__ __forceinline__ void store_staged(bf16* staged, const HeadRows<bf16>& to, int64_t row, int column,
                                             int present, int lane, const Pair& pair) {
  store_staged<kDim>(staged, to, row, column, present, lane, pair, [](int r) { return r; });
}

}  // namespace lockstep::kernels::cuda
