// The one forward. T rows (B sequences back to back), D width, V vocabulary, H heads, K head dim.
//
// A row's outputs depend only on its own sequence and adapter: not on other rows, chunking, threads or instruction set.
#pragma once

#include <memory>
#include <span>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/attention.h"
#include "lora/delta.h"
#include "model/rope_cache.h"
#include "model/weights.h"

namespace lockstep::model {

// Consecutive rows of one sequence. kv_blocks[b] is the memory of positions 16b .. 16b+15 for all layers:
// layer l starts at kv_blocks[b] + l * layer_stride (0: one layer's memory used by every layer in turn).
struct Segment {
  int64_t row_begin = 0, rows = 0, first_position = 0;
  std::span<float* const> kv_blocks;
  const lora::AdapterVersion* adapter = nullptr;  // nullptr: base
};

struct RowBatch {
  std::span<const int32_t> tokens;    // [T]; DataError when outside the vocabulary
  std::span<const Segment> segments;  // cover all T rows in order
  int64_t kv_layer_stride = 0;        // floats
};

// Per layer KV memory of one block: layers * kv_block_floats floats when every layer keeps its own.
class Model {
 public:
  static constexpr int64_t kLogitsBytes = int64_t{128} << 20;

  // logits_bytes: the stated bound of every [N, V] buffer.
  Model(ModelConfig config, std::shared_ptr<const Weights> weights, int64_t logits_bytes = kLogitsBytes);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return *weights_; }
  kernels::AttentionShape attention_shape(int64_t layer) const;
  int64_t kv_layer_floats() const;  // floats of one block of one layer

  // Runs all blocks for the rows and stores their keys and values. hidden_TD [T, D] f32: the residual stream after the
  // last block, before the final norm. Positions must be below config().max_positions (DataError).
  void forward(Tensor hidden_TD, const RowBatch& batch, Arena& arena, Stream& stream) const;

  // logits [N, V] = head(final_norm(hidden [N, D])). The caller bounds N.
  void logits(Tensor logits_NV, ConstTensor hidden_ND, Arena& arena, Stream& stream) const;

  // Rows of logits that fit the stated bound (at least 1): nobody ever holds a larger [N, V] buffer.
  int64_t logits_rows() const;

  // logprob[i] of targets[i] given hidden row i, at logits * inv_temperature over the full vocabulary; chunked by
  // logits_rows(). entropy may be empty. targets -1 are skipped (logprob 0, entropy 0, no head computed).
  void logprobs(Tensor logprob_N, Tensor entropy_N, ConstTensor hidden_ND, std::span<const int32_t> targets,
                float inv_temperature, Arena& arena, Stream& stream) const;

 private:
  friend class TrainPass;
  ModelConfig config_;
  std::shared_ptr<const Weights> weights_;
  std::unique_ptr<RopeCache> rope_;
  int64_t logits_bytes_;
};

}  // namespace lockstep::model
