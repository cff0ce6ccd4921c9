// Arguments of the q/k norm + RoPE kernels (qk_norm_rope.cu, qk_norm_rope_delta.cu, linear_tiles_heads.cuh).
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {

struct QkNormRopeArguments {
  int64_t rows;
  int heads, kv_heads, head_dim;
  uint32_t items;  // heads per row that get threads: queries, keys, and values if they are stored
  const int32_t* positions;
  const float *cosines, *sines;
  const float *q_norm, *k_norm;  // both or neither
  float* rstd;
  float eps;
  int64_t kv_offset;
  const DeviceSequence* sequences;  // nullptr: nothing is stored
  const int32_t* sequence_of_row;
  void* const* blocks;
  bool norms_aligned;

  void store_in(const DeviceSequences& all) {
    sequences = all.sequences;
    sequence_of_row = all.sequence_of_row;
    blocks = all.blocks;
  }
  __device__ bool is_query(int head) const { return head < heads; }
  __device__ bool is_value(int head) const { return head >= heads + kv_heads; }
  // Where rstd of a query or key is stored.
  __device__ int64_t rstd_index(int64_t row, int head) const {
    return is_query(head) ? row * heads + head : rows * heads + row * kv_heads + (head - heads);
  }
  // The index of element `low` of a head in the tables of angles.
  __device__ int64_t angles_at(int64_t row, int low) const { return int64_t{positions[row]} * (head_dim / 2) + low; }
};

// The block of a sequence's position: its index in h.blocks.
__device__ __forceinline__ int64_t block_index(const QkNormRopeArguments& h, int sequence, int position) {
  return h.sequences[sequence].block_begin + position / kKvBlock;
}
// The place of a key or value among those of its block; `head` counts queries and keys first.
__device__ __forceinline__ int64_t place_in_block(const QkNormRopeArguments& h, int position, int head) {
  // A block's values follow its keys.
  return static_cast<int64_t>(head - h.heads) * kKvBlock + position % kKvBlock;
}
// Where the key or value of a row is stored.
__device__ __forceinline__ bf16* stored(const QkNormRopeArguments& h, int64_t row, int position, int head) {
  bf16* block = static_cast<bf16*>(h.blocks[block_index(h, h.sequence_of_row[row], position)]) + h.kv_offset;
  return block + place_in_block(h, position, head) * h.head_dim;
}

inline QkNormRopeArguments arguments_of(const ConstTensor& qkv, const ConstTensor& rstd, const QkNormRopeSpec& spec) {
  const QkNorms& norms = spec.norms;
  const AttentionShape& shape = spec.shape;
  const auto at_16 = [](const ConstTensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  return {.rows = qkv.shape[0],
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .items = static_cast<uint32_t>(shape.heads + shape.kv_heads),
          .positions = spec.positions.data(),
          .cosines = spec.table.cos(),
          .sines = spec.table.sin(),
          .q_norm = norms.q_norm.empty() ? nullptr : data_of<float>(norms.q_norm),
          .k_norm = norms.k_norm.empty() ? nullptr : data_of<float>(norms.k_norm),
          .rstd = rstd.empty() ? nullptr : const_cast<float*>(data_of<float>(rstd)),
          .eps = norms.eps,
          .kv_offset = shape.kv_offset,
          .norms_aligned = at_16(norms.q_norm) && at_16(norms.k_norm)};
}

}  // namespace lockstep::kernels::cuda
