// What the attention kernels for head_dim 144 .. 256 share. A tile of 64 such rows takes 32 KB, so these kernels work
// on halves of a head's columns or on 32 rows at a time: each CTA stays below the 99 KB of shared memory that every
// supported GPU has. The sums are those of attention_common.cuh.
#pragma once

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int kWideDim = 256;               // head_dim is padded with zeros to this
inline constexpr int kHalfColumns = kWideDim / 2;  // columns that one warp, CTA or step handles
inline constexpr int kSmallTileRows = 32;          // rows of a tile in backward

// Copies columns first_column .. first_column + kDim - 1 of 16 keys (or values) of one head, which are 16 * head_dim
// contiguous elements at `from`, into rows row .. row + 15 of a tile, by the lanes first, first + step ...; columns
// from head_dim on and keys from `keys` on become zeros and are not read.
template <int kDim>
__device__ __forceinline__ void copy_kv_columns(bf16* tile, int row, const bf16* from, int keys, int head_dim,
                                                int first_column, int first, int step) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int i = first; i < kKvBlock * kChunks; i += step) {
    const int r = i / kChunks, chunk = i % kChunks, column = first_column + chunk * 8;
    const bool valid = r < keys && column < head_dim;
    copy_async_16(tile + tile_offset<kDim>(row + r, chunk), from + (valid ? r * head_dim + column : 0), valid);
  }
}

// attention_forward_wide.cu, attention_backward_wide.cu
struct Forward;
struct Backward;
void launch_forward_wide(const Forward& p, Stream& stream);
void launch_backward_wide(const Backward& p, Stream& stream);

}  // namespace lockstep::kernels::cuda
