// Causal attention over paged keys and values; the same code for training, prefill and decode.
//   o_i = sum_j p_ij v_j,  p_ij = exp(s_ij - max_j s_ij) / sum_j exp(...),  s_ij = scale * q_i . k_j,
//   j runs over the visible positions max(0, i - window + 1) .. i.    Source: arXiv 1706.03762, eq. 1.
//
// Keys and values live in blocks of 16 positions. A block of one layer is [kv_heads][head_dim][16] keys (transposed, so
// that a score is one chain over head_dim with 16 keys side by side) followed by [kv_heads][16][head_dim] values, f32.
// p and o are computed from a whole row of scores (no online rescaling); lanes of 16 (the rules in kernels/pack.h)
// start at multiples of 16 of the key position, so a row's bits depend only on its own tokens. o is one chain over j in
// order of exp(s - max) v, then times 1/sum.
#pragma once

#include <span>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

inline constexpr int64_t kKvBlock = 16;

struct AttentionShape {
  int64_t heads = 0;  // query heads; heads % kv_heads == 0
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // tokens visible including oneself; 0: all
  float scale = 0;     // usually 1 / sqrt(head_dim)

  int64_t key_block_floats() const { return kv_heads * head_dim * kKvBlock; }
  int64_t block_floats() const { return 2 * key_block_floats(); }
};

// One sequence in this call: rows [row_begin, row_begin + rows) of q are its positions first_position ...
// blocks[b] is the memory of positions 16b .. 16b+15 of this layer; it must cover first_position + rows.
struct AttentionSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  std::span<float* const> blocks;
};

// Copies k, v of the new rows into their blocks. k, v [T, kv_heads * head_dim] f32 (after q/k norm and rope).
// Entries of a block beyond the written position are set to 0 when its first position is written.
void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
              Stream& stream);

// q, o [T, heads * head_dim] f32; o overwritten; keys of all positions up to each row's own must be stored.
// stats [T, heads, 2] f32 (max, sum), written unless empty; needed by backward.
void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                       std::span<const AttentionSequence> sequences, Stream& stream);

// Gradients for whole sequences (first_position == 0). dq, dk, dv overwritten; shapes of q and of k, v.
//   dv_j = sum_i p_ij do_i;  ds_ij = p_ij (do_i . v_j - do_i . o_i)
//   dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i
// Sums over i run in order of (position i, head in the group).
void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                        Stream& stream);

}  // namespace lockstep::kernels
