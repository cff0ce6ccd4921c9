// Tiles of 8 rows x 64 columns that a warp reads, changes and writes back: in device memory by whole lines, in
// registers as the tensor core has them (lora_strips.cuh).
#pragma once

#include <type_traits>

#include "kernels/cuda/tile.cuh"

namespace lockstep::kernels::cuda {

// The address of a lane's columns in a matrix.
template <class T>
struct LaneRows {
  T* first;
  int stride_bytes;

  __device__ LaneRows(T* data, int64_t stride, int column)
      : first(data + column), stride_bytes(static_cast<int>(stride) * static_cast<int>(sizeof(T))) {}
  __device__ __forceinline__ T* at(int row) const {
    using Bytes = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Bytes*>(first) + int64_t{row} * stride_bytes);
  }
};

// A warp's tiles in shared memory, kTiles at a time, copied one step ahead. In device memory eight lanes take a row:
// lane l has chunk l % 8 (8 columns) of rows l / 8 and l / 8 + 4, so that whole lines of 128 bytes are touched. The
// tensor core's lanes take the 16 bytes of their columns and rows. Chunk c of row r lies at c ^ r, without bank
// conflicts.
//
// Call begin(copy) once; then, for every step, advance(more, copy), which starts the next step's copies, and get().
// copy(fetch) calls fetch(i, address(row of the tile)) for every tile. What put() has changed is written by
// store(i, f), which calls f(row of the tile, 16 bytes).
template <int kTiles>
class TileFetch {
 public:
  static constexpr int kWarpBytes = 2 * kTiles * 64 * static_cast<int>(sizeof(uint4));

  __device__ TileFetch(uint4* warp_memory, int lane)
      : memory_(warp_memory),
        outside_(8 * (lane / 8) + (lane % 8 ^ lane / 8)),
        inside_(16 * (lane % 4) + (lane / 4 ^ lane % 4 * 2)),
        row_(lane / 8) {}

  template <class Copy>
  __device__ __forceinline__ void begin(const Copy& copy) {
    start(memory_, copy);
    copy_commit();
  }
  template <class Copy>
  __device__ __forceinline__ void advance(bool more, const Copy& copy) {
    __syncwarp();  // no lane still reads the memory that the copies write
    if (more) start(memory_ + 64 * kTiles * (1 - stage_), copy);
    copy_commit();
    copy_wait<1>();
    __syncwarp();
    now_ = memory_ + 64 * kTiles * stage_;
    stage_ = 1 - stage_;
  }
  // Of the lane's two rows.
  __device__ __forceinline__ uint4 get(int tile, int r) const { return now_[64 * tile + ((inside_ + 8 * r) ^ r)]; }
  __device__ __forceinline__ void put(int tile, int r, uint4 value) {
    now_[64 * tile + ((inside_ + 8 * r) ^ r)] = value;
  }
  // Between put() and store(), and between store() and put(): __syncwarp().
  template <class F>
  __device__ __forceinline__ void store(int tile, const F& f) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) f(row_ + 4 * half, now_[64 * tile + ((outside_ + 32 * half) ^ (4 * half))]);
  }

 private:
  template <class Copy>
  __device__ __forceinline__ void start(uint4* to, const Copy& copy) {
    copy([&](int tile, const auto& address) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        copy_async_16(to + 64 * tile + ((outside_ + 32 * half) ^ (4 * half)), address(row_ + 4 * half));
    });
  }

  uint4 *memory_, *now_ = nullptr;
  int outside_, inside_, row_, stage_ = 0;
};

}  // namespace lockstep::kernels::cuda
