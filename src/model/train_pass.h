// Forward and backward of one micro-batch of whole packed sequences, with gradients for adapter tensors only.
//
// The head returns per token {log-probs of its target and of K candidates, entropy, hidden state} and takes a gradient
// for each; it never sees a loss.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "model/recompute.h"

namespace lockstep::model {

struct TrainBatch {
  std::span<const int32_t> tokens;          // [T], sequences back to back
  std::span<const int64_t> sequence_begin;  // [B + 1], first is 0, last is T
  std::span<const int32_t> targets;         // [T]: target of the logits at this row (usually the next token); -1: none
  // [T * K]: other tokens of each row whose log-probs are asked for; -1: none. Rows without a target have none.
  std::span<const int32_t> candidates = {};
  // [B], or empty. shared[i] = n > 0: the first n rows of sequence i are those of its leader, the nearest earlier
  // sequence with shared = 0. The leader's forward computes them, and its lane gets their gradient. n is a number of
  // whole KV blocks, the same for all that follow one leader; both have these n tokens and the same adapter, both are
  // longer than n, and there is no target among the rows that are left out. Not of score.
  std::span<const int64_t> shared = {};
};

struct TrainOptions {
  float inv_temperature = 1;
  Recompute recompute = Recompute::selective;
  bool entropy = false;  // compute entropy (needed when its gradient is given)
  bool greedy = false;   // score only: the token of the largest logit
  int64_t top = 0;       // score only: that many of the likeliest tokens
  // forward only. false: no logits are made, and hidden_ND is the only output (a critic's).
  bool logprobs = true;
};

// Valid until the next forward.
struct HeadOutputs {
  ConstTensor logprob_T, entropy_T;   // [T] f32, host memory; 0 where there is no target
  std::span<const int32_t> greedy_T;  // [T] host memory; -1 where there is no target
  // In host memory: [T, K] log-probs of the batch's candidates, 0 where there is none; [T * top] the likeliest tokens,
  // the first one first, and their log-probs; -1 and 0 where there is no target.
  ConstTensor candidate_logprob_TK = {};
  std::span<const int32_t> top_TK = {};
  std::span<const float> top_logprob_TK = {};
  // What the output head reads: activations of the N rows with a target, in order, after the final norm, in the
  // stream's memory. A value head reads it, too. Of forward only.
  ConstTensor hidden_ND;
};

// Gradients of the outputs. Those of log-probs and entropy lie in host memory, of hidden_ND in the stream's; all but
// logprob_T may be empty; without TrainOptions::logprobs hidden_ND is the only one. candidate_logprob_TK [T, K].
struct HeadGradients {
  ConstTensor logprob_T = {}, entropy_T = {}, hidden_ND = {}, candidate_logprob_TK = {};
};

class TrainPass {
 public:
  TrainPass(const Model& model, Stream& stream);
  ~TrainPass();

  // Keeps what backward needs. `adapters` [B]: the version that each sequence uses (nullptr: the base, which has no
  // gradient); dropout acts on their inputs. A sequence's outputs, and an adapter's gradients, do not depend on the
  // other adapters of the batch. The memory behind the versions and `dropout` must live until backward; that behind
  // `batch` and `adapters` need not. DataError: token or target outside the vocabulary, a sequence longer than the
  // model allows. ShapeError: lengths that do not fit together, no adapter at all, dropout of shared rows.
  HeadOutputs forward(const TrainBatch& batch, std::span<const lora::AdapterVersion* const> adapters,
                      const TrainOptions& options, const kernels::LoraDropout& dropout = {});
  // With one adapter for all sequences.
  HeadOutputs forward(const TrainBatch& batch, const lora::AdapterVersion& adapter, const TrainOptions& options,
                      const kernels::LoraDropout& dropout = {});

  // Adds to the gradient lanes: flat f32 buffers in the layout of their rows' adapter, in the stream's memory. Lanes
  // are row ranges in order, each of rows of one adapter; rows of no lane add nothing. Stops below the lowest adapted
  // layer. Call once after forward (ShapeError).
  void backward(const HeadGradients& d, std::span<const lora::GradientRows> lanes);
  void backward(ConstTensor d_logprob_T, ConstTensor d_entropy_T, std::span<const lora::GradientRows> lanes) {
    backward({.logprob_T = d_logprob_T, .entropy_T = d_entropy_T}, lanes);
  }

  // Log-probabilities only, nothing kept: the reference policy (adapter nullptr), scoring, evaluation losses. May be
  // called between forward and backward; its outputs are valid until the next score.
  HeadOutputs score(const TrainBatch& batch, const lora::AdapterVersion* adapter, const TrainOptions& options);

  // Gives all memory back; what forward kept is forgotten.
  void release_memory();

  // Estimated bytes of activations for T tokens (for --dry-run and for choosing micro-batches).
  // `candidates`: of each row.
  static int64_t activation_bytes(const ModelSpec& config, const lora::AdapterLayout& layout, int64_t tokens,
                                  Recompute recompute, Device device, int64_t candidates = 0);

 private:
  struct Saved;  // between forward and backward
  struct Logits;

  void head_forward();
  Logits alloc_logits(Arena& arena, int64_t rows);
  // Logits of the rows from `begin` on of those with a target, and their log-probs. `again`: in backward.
  void logits_forward(const Logits& logits, int64_t begin, bool again);
  HeadOutputs forward_outputs(bool entropy);
  HeadOutputs read_outputs(Tensor outputs, Buffer& host, bool entropy);
  void head_backward(Tensor d, const HeadGradients& outputs, std::span<const lora::GradientRows> lanes);
  // Their gradient, in their memory. d_outputs [1 or 2, N]: of log-probs, and of entropies; d_candidates [N, K], or
  // empty.
  Tensor logits_backward(const Logits& logits, int64_t begin, Tensor d_outputs, ConstTensor d_candidates);
  // Nobody reads logits once head_backward is done: their memory, for backward of the blocks. Empty on the CPU.
  Tensor memory_of_logits();
  // Rows from `begin` on of those with a target, as many as d_logits has. `lanes` number these rows.
  void head_chunk_backward(Tensor d_hidden, ConstTensor d_logits, int64_t begin,
                           std::span<const lora::GradientRows> lanes);

  const Model& model_;
  Stream& stream_;
  Arena kept_, scratch_;
  std::unique_ptr<Saved> saved_;
  Buffer outputs_, score_outputs_;  // host memory
  std::vector<int32_t> greedy_, top_;
  std::vector<float> candidate_logprobs_, score_candidate_logprobs_, top_logprobs_;
};

}  // namespace lockstep::model
