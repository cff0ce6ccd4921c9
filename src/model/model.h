// The one forward. T rows (B sequences back to back), D width, V vocabulary, H heads, K head dim.
//
// A row's outputs depend only on its own sequence and adapter: not on other rows, chunking, threads or instruction set.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/attention.h"
#include "lora/site_adapters.h"
#include "model/rope_cache.h"
#include "model/weights.h"

namespace lockstep::model {

struct Rows;
struct WantedRows;

// Consecutive rows of one sequence. kv_blocks[b] (in the stream's memory) is the memory of positions 16b .. 16b+15 for
// all layers: layer l starts l * kv_layer_stride elements on (0: one layer's memory used by every layer in turn).
struct Segment {
  int64_t row_begin = 0, rows = 0, first_position = 0;
  std::span<void* const> kv_blocks;
  const lora::AdapterVersion* adapter = nullptr;  // nullptr: base
};

struct RowBatch {
  std::span<const int32_t> tokens;    // [T]; DataError when outside the vocabulary
  std::span<const Segment> segments;  // cover all T rows in order
  int64_t kv_layer_stride = 0;        // elements
  // Rows whose hidden states somebody reads, rising; absent: all. Where they are few, the last block stores keys and
  // values of all rows and does the rest for these alone: the same bits in these rows, and nothing of use in others.
  std::optional<std::span<const int32_t>> wanted = {};
};

// Rows of a decode step that already lie on the GPU and change there from step to step: what a captured graph reads.
struct DecodeRows {
  std::span<const int32_t> tokens, positions;     // [T]
  kernels::DeviceSequences sequences;             // one row each
  int64_t max_positions = 0;                      // no position reaches it
  int64_t kv_layer_stride = 0;                    // elements
  const lora::AdapterVersion* adapter = nullptr;  // of every row; nullptr: base, or those of `tiles`
  kernels::RankRows rank_rows = {};               // where `adapter` is an AdapterStack's
  kernels::LoraTiles tiles;
};

// Whose adapters which rows of these segments use; neighbours with one adapter are one entry.
std::vector<lora::AdapterRows> adapter_rows(std::span<const Segment> segments);

class Model {
 public:
  static constexpr int64_t kLogitsBytes = int64_t{128} << 20, kGpuLogitsBytes = int64_t{5120} << 20;
  static int64_t default_logits_bytes(Device device) { return device == Device::cpu ? kLogitsBytes : kGpuLogitsBytes; }

  // logits_bytes: the stated bound of every [N, V] buffer.
  Model(ModelSpec config, std::shared_ptr<const Weights> weights, int64_t logits_bytes = kLogitsBytes,
        lora::BaseVersion version = {});

  const ModelSpec& config() const { return config_; }
  lora::BaseVersion version() const { return version_; }  // adapters of another one are refused
  const Weights& weights() const { return *weights_; }
  kernels::AttentionShape attention_shape(int64_t layer) const;
  int64_t kv_layer_elements() const;  // activations in one block of one layer

  // Runs all blocks for the rows and stores their keys and values. hidden_TD [T, D] activations: the residual stream
  // after the last block, before the final norm (batch.wanted: of those rows). Positions must be below
  // config().max_positions (DataError). `arena` is of the stream's device.
  void forward(Tensor hidden_TD, const RowBatch& batch, Arena& arena, Stream& stream) const;
  // The same for rows that lie on the GPU; copies nothing, so a graph can capture it.
  void forward(Tensor hidden_TD, const DecodeRows& rows, Arena& arena, Stream& stream) const;

  // logits [N, V] f32 = head(final_norm(hidden [N, D])), with the adapters of these rows. The caller bounds N.
  void logits(Tensor logits_NV, ConstTensor hidden_ND, const RowAdapters& adapters, Arena& arena, Stream& stream) const;

  // Rows of logits that fit the stated bound (at least 1): nobody ever holds a larger [N, V] buffer.
  int64_t logits_rows() const;

  // logprob[i] of targets[i] given hidden row i, at logits * inv_temperature over the full vocabulary; chunked by
  // logits_rows(). `adapters`: of the N rows. entropy may be empty. targets (host memory) -1 are skipped (logprob 0,
  // entropy 0, no head computed). In host memory, each empty unless it is wanted, and waited for: greedy [N] the token
  // of the largest logit, -1 where skipped; candidate_logprobs [N * K] those of the candidates [N * K], 0 where one is
  // -1 or the row is skipped; top_tokens and top_logprobs [N * K] the likeliest tokens, the first one first, -1 and 0
  // where skipped.
  struct LogprobCall {
    Tensor logprob_N, entropy_N = {};
    ConstTensor hidden_ND;
    std::span<const int32_t> targets;
    const RowAdapters& adapters;
    float inv_temperature = 1;
    std::span<int32_t> greedy = {};
    std::span<const int32_t> candidates = {};
    std::span<float> candidate_logprobs = {};
    std::span<int32_t> top_tokens = {};
    std::span<float> top_logprobs = {};
  };
  void logprobs(const LogprobCall& call, Arena& arena, Stream& stream) const;

 private:
  friend class TrainPass;
  void run_blocks(Tensor hidden_TD, const Rows& rows, const WantedRows* wanted, Arena& arena) const;

  ModelSpec config_;
  std::shared_ptr<const Weights> weights_;
  std::unique_ptr<RopeCache> rope_;
  int64_t logits_bytes_;
  lora::BaseVersion version_;
};

}  // namespace lockstep::model
