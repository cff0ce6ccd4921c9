// What the attention kernels of every instruction set share: query vectors, visible keys, work items.
//
// The query rows of one sequence and one key/value head are a list of "vectors" in order of (position, head in the
// group): vector v belongs to position first_position + v / group and to query head kv_head * group + v % group. All of
// them read the same keys and values, so a tile of vectors reads each key and value once.
#pragma once

#include <algorithm>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/attention.h"

namespace lockstep::kernels::cpu {

// One sequence and one key/value head of a call.
struct AttentionHead {
  const AttentionShape* shape;
  const AttentionSequence* sequence;
  int64_t kv_head;

  int64_t group() const { return shape->heads / shape->kv_heads; }
  int64_t vectors() const { return sequence->rows * group(); }
  int64_t position(int64_t v) const { return sequence->first_position + v / group(); }
  int64_t first_key(int64_t v) const {
    return shape->window > 0 ? std::max<int64_t>(0, position(v) - shape->window + 1) : 0;
  }
  const float* keys(int64_t block) const {  // [head_dim][16]
    return static_cast<const float*>(sequence->blocks[static_cast<size_t>(block)]) + shape->kv_offset +
           kv_head * shape->head_dim * kKvBlock;
  }
  const float* values(int64_t block) const { return keys(block) + shape->key_block_elements(); }  // [16][head_dim]
};

// Some vectors of a head: an amount of work for one thread.
struct AttentionItem {
  AttentionHead head;
  int64_t begin, end;  // vectors
  int64_t cost;        // pairs of vector and key
};

inline int64_t visible_pairs(const AttentionHead& head, int64_t begin, int64_t end) {
  return (end - begin) * (head.position(end - 1) - head.first_key(begin) + 1);
}

void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
              Stream& stream);

// The tensors of attention_forward.
struct AttentionTensors {
  Tensor o, stats;
  ConstTensor q;
};
void attention_forward(const AttentionTensors& tensors, const AttentionShape& shape,
                       std::span<const AttentionSequence> sequences, Stream& stream);

// The tensors of attention_backward.
struct AttentionGrad {
  Tensor dq, dk, dv;
  ConstTensor d_o, q, o, stats;
};

// Keys of blocks [block_begin, block_end) against vectors [begin, end) of a head; wants_queries: dq of these vectors
// (then all keys they see must be in), wants_keys: dk and dv of those of these keys that are the sequence's own (then
// all its vectors that see them must be in). `followers`: the sequences that begin with keys of this one.
struct AttentionGradItem {
  AttentionHead head;
  int64_t begin, end;
  int64_t block_begin, block_end;
  bool wants_queries, wants_keys;
  int64_t cost;
  std::span<const AttentionSequence> followers = {};

  int64_t first_own_block() const { return head.sequence->first_position / kKvBlock; }
};
void attention_backward(const AttentionGrad& grad, const AttentionShape& shape,
                        std::span<const AttentionSequence> sequences, Stream& stream);

}  // namespace lockstep::kernels::cpu
