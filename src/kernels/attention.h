// Causal attention over paged keys and values; the same code for training, prefill and decode.
//   o_i = sum_j p_ij v_j,  p_ij = exp(s_ij - max_j s_ij) / sum_j exp(...),  s_ij = scale * q_i . k_j,
//   j runs over the visible positions max(0, i - window + 1) .. i.    Source: arXiv 1706.03762, eq. 1.
//
// Keys and values live in blocks of 16 positions.
// CPU: a block of one layer is [kv_heads][head_dim][16] keys (transposed, so that a score is one chain over head_dim
// with 16 keys side by side) followed by [kv_heads][16][head_dim] values, f32. p and o are computed from a whole row of
// scores (no online rescaling); lanes of 16 (the rules in kernels/kernels.h) start at multiples of 16 of the key
// position, so a row's bits depend only on its own tokens. o is one chain over j in order of exp(s - max) v, then times
// 1/sum. CUDA: a block of one layer is [kv_heads][16][head_dim] keys followed by values of the same layout, bf16.
// Scores of 64 keys at a time, online softmax in order of keys, within spans of kKeySpan positions; spans are joined in
// order. Both lengths are fixed by the position, so training, chunked prefill and decode give a row the same bits.
#pragma once

#include <span>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::kernels {

inline constexpr int64_t kKvBlock = 16;

// Keys that are summed up on their own before they join the row's result (CUDA): decode spreads them over the GPU.
inline constexpr int64_t kKeySpan = 256;
// Query rows (and keys, in backward) of one tile (CUDA).
inline constexpr int64_t kQueryTile = 64;

struct AttentionShape {
  int64_t heads = 0;  // query heads; heads % kv_heads == 0
  int64_t kv_heads = 0;
  int64_t head_dim = 0;   // CUDA: a multiple of 16 up to 256
  int64_t window = 0;     // tokens visible including oneself; 0: all
  float scale = 0;        // usually 1 / sqrt(head_dim)
  int64_t kv_offset = 0;  // elements from a block's memory to the layer in question

  int64_t key_block_elements() const { return kv_heads * head_dim * kKvBlock; }
  int64_t block_elements() const { return 2 * key_block_elements(); }
};

// One sequence in this call: rows [row_begin, row_begin + rows) of q are its positions first_position ...
// blocks[b] is the memory of positions 16b .. 16b+15; it must cover first_position + rows.
struct AttentionSequence {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  std::span<void* const> blocks;  // host array of pointers to device memory
};

// The same on a GPU. All pointers are device memory.
struct DeviceSequence {
  int32_t row_begin = 0, rows = 0, first_position = 0;
  int32_t block_begin = 0;  // its blocks are blocks[block_begin ...]
};
// A span of kKeySpan positions that lies in the same memory for `count` neighbouring sequences (samples of one prompt):
// decode reads it once for all of them.
struct SharedSpan {
  int32_t sequence = 0, count = 0, span = 0;
};
struct QueryTile {
  int32_t sequence = 0;
  int32_t first = 0;  // rows first .. first + 63 of the sequence (as far as it has them); a multiple of 64
};
struct DeviceSequences {
  const DeviceSequence* sequences = nullptr;  // [num_sequences]
  void* const* blocks = nullptr;
  const int32_t* sequence_of_row = nullptr;  // [T]
  const QueryTile* tiles = nullptr;          // [num_tiles], most keys first; absent in decode (every sequence has
                                             // one row, at a position above 0)
  int64_t num_sequences = 0, num_tiles = 0;
  int64_t max_positions = 0;      // no sequence has more than this many keys; sizes the grid, changes no result
  float* span_scratch = nullptr;  // decode: partial results of spans, span_scratch_floats of the shape
  const SharedSpan* shared_spans = nullptr;  // decode: [num_shared_spans]
  const int32_t* first_own_span = nullptr;   // [num_sequences] spans before it are shared; absent: none are
  int64_t num_shared_spans = 0;
  // attention_backward: [num_sequences] how many of the sequences after this one begin with its positions; absent:
  // none.
  const int32_t* followers = nullptr;
  // attention_backward: [num_sequences] the number of the sequence's first score tile. A score tile is 64 queries
  // by 64 keys which these could see if there were no window: keys of positions ahead of the sequence's rows, then of
  // its own rows up to the last of these queries. They are numbered by sequence, then queries, then keys; all heads
  // have the same.
  const int64_t* score_tiles = nullptr;
  int64_t num_score_tiles = 0;
};

// The sequences of a call, in order of rows and covering all of them.
struct AttentionRows {
  std::span<const AttentionSequence> sequences;
  DeviceSequences device = {};  // on a GPU, made by place_sequences

  AttentionRows() = default;
  AttentionRows(std::span<const AttentionSequence> s) : sequences(s) {}  // NOLINT: on the CPU that is all
  AttentionRows(const std::vector<AttentionSequence>& s) : sequences(s.data(), s.size()) {}  // NOLINT
};

// Uploads what a GPU needs to know; on the CPU nothing but the view. Memory in `arena` (of the stream's device).
AttentionRows place_sequences(std::span<const AttentionSequence> sequences, const AttentionShape& shape, Arena& arena,
                              Stream& stream);
// Floats of DeviceSequences::span_scratch for this many sequences of one row each.
int64_t span_scratch_floats(const AttentionShape& shape, int64_t num_sequences, int64_t max_positions);

// Memory of attention_backward on a GPU; on the CPU both may be empty.
struct AttentionScratch {
  Tensor dots;             // [T, heads] f32: do_i . o_i
  Tensor score_gradients;  // bf16, of any size. Where it has score_gradient_elements, a Hopper GPU computes ds of heads
                           // of 64 or 128 once and keeps it here for dq, rather than twice; the bits are the same.

  AttentionScratch(Tensor dots = {}, Tensor score_gradients = {})  // NOLINT: mostly that is all
      : dots(dots), score_gradients(score_gradients) {}
};
int64_t score_gradient_elements(const AttentionShape& shape, const AttentionRows& rows);  // 0 on the CPU

// Copies k, v of the new rows into their blocks (CPU). k, v [T, kv_heads * head_dim] f32 (after norm and rope).
// Entries of a block beyond the written position are set to 0 when its first position is written.
void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, const AttentionRows& rows, Stream& stream);

// q, o [T, heads * head_dim] activations; o overwritten; keys of all positions up to each row's own must be stored.
// stats [T, heads, 2] f32 (max, sum), written unless empty; needed by backward.
void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape, const AttentionRows& rows,
                       Stream& stream);
// Gradients for whole sequences, or for some that begin alike: a sequence with first_position p > 0 follows the last
// one before it with first_position 0 and has that one's positions 0 .. p - 1 ahead of its own rows. p is a multiple of
// kKvBlock, the same for all followers of a sequence, at most its rows, and their first p / kKvBlock blocks are its
// blocks (ShapeError). dq, dk, dv overwritten; shapes of q and of k, v.
//   dv_j = sum_i p_ij do_i;  ds_ij = p_ij (do_i . v_j - do_i . o_i)
//   dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i       i: rows of j's sequence and of those that follow
//   it
// CPU: sums over i run in order of (sequence, position i, head in the group). CUDA: of (sequence, head in the group,
// tile of 64 rows).
void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionScratch& scratch, const AttentionShape& shape,
                        const AttentionRows& rows, Stream& stream);

}  // namespace lockstep::kernels
