// The epilogue of a projection to q, k and v (linear_tiles.cu): q/k norm, RoPE and the KV store, as qk_norm_rope.cu
// does them, on a tile of two heads. A head is two slabs, its lower and its upper half. pass_slab gives a lane the same
// chunk of both, which is what a thread of qk_norm_rope.cuh holds of a head, so its sums are formed in the same order.
//
// No other work hides the latency of an epilogue's loads, so they are issued early: positions before the matmul, angles
// and the chain of loads that leads to a KV block while slabs are rounded and pass through shared memory.
#pragma once

#include "kernels/cuda/linear_tiles_epilogue.cuh"
#include "kernels/cuda/qk_norm_rope.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kTileHeadDim = 2 * kSlab, kHeadsPerTile = kTileColumns / kTileHeadDim;
inline constexpr int kHeadLanes = kChunks, kLaneRows = 4;
static_assert(head_lanes(kTileHeadDim) == kHeadLanes);
static_assert(kHeadLanes == kHeadsPerTile * kLaneRows);  // each lane of a head completes one sum

// Keeps the compiler from holding on to what it has computed from these bytes, which takes more registers than to
// compute it again.
__device__ __forceinline__ void forget(uint4& bytes) {
  asm volatile("" : "+r"(bytes.x), "+r"(bytes.y), "+r"(bytes.z), "+r"(bytes.w));
}

template <int kCount>
__device__ __forceinline__ void fill(float (&values)[kCount], float with) {
#pragma unroll
  for (float& value : values) value = with;
}

// What a lane has of a tile: chunk lane % 8 of both heads' slabs, in the rows 4 i + lane / 8 of its warp's 16.
class TileHeads {
 public:
  __device__ __forceinline__ TileHeads(const TileCall& call, const TileWalk& at, const WarpRows& mine)
      : row_(at.row + 64 * mine.block + 16 * mine.warp + mine.lane / 8),
        head_(at.column / kTileHeadDim),
        low_(mine.lane % kChunks * 8) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int row = min(row_ + 4 * i, call.rows - 1);
      position_[i] = call.heads.positions[row];
      sequence_[i] = call.heads.sequence_of_row[row];
    }
  }

  // Slabs 0 to 3, in order.
  __device__ __forceinline__ void take(int slab, const Words& words, const TileCall& call, const WarpRows& mine) {
    pass_slab(x_[slab], words, mine);
    __syncwarp();
    const QkNormRopeArguments& h = call.heads;
    if (!h.is_query(head_ + 1)) {
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        if (slab == 0) block_index_[i] = static_cast<int>(block_index(h, sequence_[i], position_[i]));
        if (slab == 1) block_[i] = h.blocks[block_index_[i]];
      }
    }
    if (h.is_value(head_)) return;
    if (slab % 2 == 1 && h.q_norm) add_squares(slab / 2);
    if (slab >= 1) load_angles(h, slab - 1);
    if (slab == 3) load_angles(h, 3);
  }

  __device__ __forceinline__ void finish(const TileCall& call) {
    const QkNormRopeArguments& h = call.heads;
    bf16* to[kHeadsPerTile][kLaneRows];
    float norm[kHeadsPerTile][2][8], rstd[kHeadLanes];
#pragma unroll
    for (int head = 0; head < kHeadsPerTile; ++head) {
      place(to[head], call, head_ + head);
      load_norm(norm[head], h, head_ + head);
    }
    if (h.q_norm)
      many_rstds<kHeadLanes>(rstd, squares_, kTileHeadDim, h.eps);
    else
      fill(rstd, 1);  // x * 1 * 1 is x
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
      for (int head = 0; head < kHeadsPerTile; ++head) {
        uint4 &low = x_[2 * head][i], &high = x_[2 * head + 1][i];
        if (!h.is_value(head_ + head)) {
          float a[8], b[8];
          forget(low), forget(high);
          widen(a, low), widen(b, high);
          scale_head(a, rstd[head * kLaneRows + i], norm[head][0]);
          scale_head(b, rstd[head * kLaneRows + i], norm[head][1]);
          rotate(a, b, angles_[i]);
          low = rounded(a), high = rounded(b);
        }
        if (row_ + 4 * i < call.rows && (head_ + head) * kTileHeadDim < call.width) {
          __stcs(reinterpret_cast<uint4*>(to[head][i]), low);
          __stcs(reinterpret_cast<uint4*>(to[head][i] + kSlab), high);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void load_angles(const QkNormRopeArguments& h, int i) {
    angles_[i].load(h.cosines, h.sines, position_[i] * (kTileHeadDim / 2) + low_);
  }
  // Where the lower halves are stored.
  __device__ __forceinline__ void place(bf16* (&to)[kLaneRows], const TileCall& call, int head) const {
    const QkNormRopeArguments& h = call.heads;
    if (h.is_query(head)) {
      bf16* const first = call.y + row_ * call.y_stride + head * kTileHeadDim + low_;
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) to[i] = first + 4 * i * call.y_stride;
    } else {
      const int64_t begin = h.kv_offset + place_in_block(h, 0, head) * kTileHeadDim + low_;
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i)
        to[i] = static_cast<bf16*>(block_[i]) + begin + (position_[i] & (kKvBlock - 1)) * kTileHeadDim;
    }
  }
  // Of the lower and the upper half.
  __device__ __forceinline__ void load_norm(float (&norm)[2][8], const QkNormRopeArguments& h, int head) const {
    const float* const weights = h.is_query(head) ? h.q_norm : h.k_norm;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (h.q_norm)
        load_all8(norm[half], weights + half * kSlab + low_, true);
      else
        fill(norm[half], 1);
  }
  __device__ __forceinline__ void add_squares(int head) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      float a[8], b[8];
      widen(a, x_[2 * head][i]), widen(b, x_[2 * head + 1][i]);
      squares_[head * kLaneRows + i] = sum_of_products(sum_of_products(0, a, a), b, b);
    }
  }

  const int row_, head_, low_;  // of row i = 0; the tile's first head; the chunk's first element in a half
  int position_[kLaneRows], sequence_[kLaneRows], block_index_[kLaneRows];
  void* block_[kLaneRows] = {};
  uint4 x_[kTileSlabs][kLaneRows];
  float squares_[kHeadLanes] = {};  // a lane's part of each head's sum: of head 0's rows, then of head 1's
  Angles angles_[kLaneRows];
};

}  // namespace lockstep::kernels::cuda
