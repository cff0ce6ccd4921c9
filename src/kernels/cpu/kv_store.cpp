#include <vector>

#include "kernels/cpu/attention_work.h"
#include "kernels/cpu/rows.h"

namespace lockstep::kernels::cpu {
namespace {

// Positions [begin, end) of one block.
struct BlockRows {
  const AttentionSequence* sequence;
  int64_t begin, end;
};

void store_block(const BlockRows& part, const ConstTensor& k, const ConstTensor& v, const AttentionShape& shape) {
  float* const block =
      static_cast<float*>(part.sequence->blocks[static_cast<size_t>(part.begin / kKvBlock)]) + shape.kv_offset;
  const int64_t offset = part.begin % kKvBlock, count = part.end - part.begin;
  // A fresh block: what lies beyond the written positions is multiplied by probability 0, which needs finite numbers.
  if (offset == 0 && count < kKvBlock) std::fill_n(block, shape.block_elements(), 0.0f);
  const int64_t row = part.sequence->row_begin + part.begin - part.sequence->first_position;
  const int64_t head_dim = shape.head_dim;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    float* const keys = block + head * head_dim * kKvBlock + offset;
    float* const values = block + shape.key_block_elements() + (head * kKvBlock + offset) * head_dim;
    for (int64_t i = 0; i < count; ++i) {
      const float* const key = k.row(row + i) + head * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) keys[d * kKvBlock + i] = key[d];
      std::copy_n(v.row(row + i) + head * head_dim, head_dim, values + i * head_dim);
    }
  }
}

}  // namespace

void kv_store(ConstTensor k, ConstTensor v, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
              Stream& stream) {
  std::vector<BlockRows> parts;
  for (const AttentionSequence& sequence : sequences) {
    const int64_t last = sequence.first_position + sequence.rows;
    for (int64_t begin = sequence.first_position; begin < last;) {
      const int64_t end = std::min(last, (begin / kKvBlock + 1) * kKvBlock);
      parts.push_back({&sequence, begin, end});
      begin = end;
    }
  }
  const int64_t count = static_cast<int64_t>(parts.size());
  const int64_t rows_per_part = count ? (k.shape[0] + count - 1) / count : 1;
  split_rows(stream, count, rows_per_part * shape.kv_heads * shape.head_dim * 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) store_block(parts[static_cast<size_t>(i)], k, v, shape);
  });
}

}  // namespace lockstep::kernels::cpu
