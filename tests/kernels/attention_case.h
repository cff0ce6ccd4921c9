// Sequences with stored keys and values, on either device, through the public API alone: the layout of a block is the
// device's own affair.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/op_case.h"
#include "kernels/qk_norm_rope.h"

namespace lockstep::kernels::testing {

inline AttentionShape attention_shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

// Blocks of several sequences. Their memory is NaN before keys and values are stored, holds two layers (the second is
// used) and is handed out from the end.
class KvCache {
 public:
  // qkv[s] [length of s, (heads + 2 kv_heads) * head_dim]: keys and values of sequence s.
  KvCache(Workbench& bench, const AttentionShape& shape, const std::vector<Tensor>& qkv) : shape_(shape) {
    shape_.kv_offset = shape.block_elements();
    int64_t longest = 0, num_blocks = 0;
    for (const Tensor& x : qkv) {
      longest = std::max(longest, x.shape[0]);
      num_blocks += (x.shape[0] + kKvBlock - 1) / kKvBlock;
    }
    const auto bytes = static_cast<size_t>(2 * shape.block_elements() * (bench.stream.device() == Device::cpu ? 4 : 2));
    const std::vector<unsigned char> nan(bytes, 0xff);
    std::vector<void*> free;
    for (int64_t b = 0; b < num_blocks; ++b) {
      free.push_back(bench.arena.alloc_bytes(bytes));
      upload(free.back(), nan.data(), bytes, bench.stream);
    }
    for (const Tensor& x : qkv) {
      std::vector<void*> own;
      for (int64_t b = 0; b < (x.shape[0] + kKvBlock - 1) / kKvBlock; ++b) own.push_back(free.back()), free.pop_back();
      blocks_.push_back(&bench.keep(std::move(own)));
    }
    store(bench, qkv, longest);
  }

  const AttentionShape& shape() const { return shape_; }
  AttentionSequence sequence(size_t s, int64_t row_begin, int64_t rows, int64_t first_position) const {
    return {.row_begin = row_begin, .rows = rows, .first_position = first_position, .blocks = *blocks_[s]};
  }
  // Sequence s from position `shared` on, after the first positions of another.
  AttentionSequence follower(Workbench& bench, size_t s, size_t leader, int64_t row_begin, int64_t rows,
                             int64_t shared) const {
    auto& blocks = bench.keep(std::vector<void*>(*blocks_[s]));
    std::copy_n(blocks_[leader]->begin(), shared / kKvBlock, blocks.begin());
    return {.row_begin = row_begin, .rows = rows, .first_position = shared, .blocks = blocks};
  }

 private:
  // Rotation by zero degrees and no norm: keys are stored as they are.
  void store(Workbench& bench, const std::vector<Tensor>& qkv, int64_t longest) {
    std::vector<int32_t> counted(static_cast<size_t>(longest));
    std::iota(counted.begin(), counted.end(), 0);
    const std::span<const int32_t> positions = bench.ints(counted);
    const std::vector<float> still(static_cast<size_t>(shape_.head_dim / 2), 0.0f);
    const RopeTable& table = bench.keep(make_rope_table(still, longest, 1.0f, bench.stream));
    const Tensor qk = bench.poisoned_activations({longest, (shape_.heads + shape_.kv_heads) * shape_.head_dim});
    for (size_t s = 0; s < qkv.size(); ++s) {
      const int64_t rows = qkv[s].shape[0];
      const auto& whole = bench.keep(std::vector<AttentionSequence>{sequence(s, 0, rows, 0)});
      qk_norm_rope_forward(
          {.spec = {.table = table, .positions = positions.first(static_cast<size_t>(rows)), .shape = shape_},
           .qk = qk.rows(0, rows),
           .rows = place_sequences(whole, shape_, bench.arena, bench.stream)},
          qkv[s], bench.stream);
    }
  }

  AttentionShape shape_;
  std::vector<std::vector<void*>*> blocks_;
};

inline std::vector<Tensor> rows_of_each(const Tensor& all, const std::vector<int64_t>& lengths) {
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths) parts.push_back(all.rows(begin, begin + length)), begin += length;
  return parts;
}

inline int64_t sum_of(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

}  // namespace lockstep::kernels::testing
